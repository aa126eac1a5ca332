# pid NAME: the guest's own number of a process.
pid() { sed -n "s/^pid $1 \([0-9]*\).*/\1/p" "$console"; }

# profile NAME COMMAND ARGUMENT...: starts a command, which leaves NAME.stdout, .stderr and .status.
profile() {
    what=$1 command=$2
    shift 2
    kvmprof "$command" --socket "$socket" "$@" >"$LAB_OUT/$what.stdout" 2>"$LAB_OUT/$what.stderr" 3>&- &
    eval "profile_$what=$!"
}

# ends NAME...: waits for commands' own ends.
ends() {
    for what in "$@"; do
        alive "waiting for the end of $what"
        eval "wait \$profile_$what"
        echo $? >"$LAB_OUT/$what.status"
    done
}

# interrupt NAME...: ends commands.
interrupt() {
    for what in "$@"; do eval "kill -TERM \$profile_$what"; done
    ends "$@"
}

# found COUNT NUMBER: waits until NUMBER profiles have met their processes so often.
found() {
    while :; do
        enough=0 all=
        status found && for ticks in $(tr '{' '\n' </run/found | sed -n 's/.*"ticks":\([0-9]*\).*"name":"profil .*/\1/p'); do
            [ "$ticks" -ge "$1" ] && enough=$((enough + 1))
            all="$all $ticks"
        done
        [ $enough -ge "$2" ] && return
        is_over && fail 93 "over before its processes were met"
        alive "ticks of profiles:$all"
        usleep 200000
    done
}

start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --cpus 2 --memory 512M --hz 200 \
    --cmdline "console=ttyS0 $quick"
says 'workload running'
fixed=$(pid fixed) pie=$(pid pie)

# A pid of nobody.
profile nobody profil --pid 30000
profile nobody_sampled pcsample --pid 30000 --nsamples 10
ends nobody nobody_sampled

# A file, all of the program; addresses of either program.
profile fixed_program profil --pid "$fixed" --every-tick
profile pie_module profil --pid "$pie" --every-tick --module /bin/pie --aix
profile pie_program profil --pid "$pie" --every-tick
found 600 3
interrupt fixed_program pie_module pie_program
profile fixed_samples pcsample --pid "$fixed" --nsamples 400 --every-tick
profile pie_samples pcsample --pid "$pie" --nsamples 400 --every-tick
ends fixed_samples pie_samples

profile after profil --pid "$(pid after)" --every-tick
profile after_raw pcsample --pid "$(pid after)" --nsamples 500000 --every-tick --raw
profile leaving profil --pid "$(pid leaving)" --every-tick
profile leaving_samples pcsample --pid "$(pid leaving)" --nsamples 500000 --every-tick
found 50 4
tell execute
ends after after_raw
tell leave
ends leaving leaving_samples

tell finish
says finished
# Its vCPUs are halted once it has gone.
profile last profil --pid "$(pid last)" --every-tick --json
found 50 1
tell halt
ends last
tell over
ended
