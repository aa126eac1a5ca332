# profile_it NAME GUEST [COMMAND]: the guest's processes, by ptrace and by the host's kernel, what COMMAND does, then the guest while it is
# halted, and until it ends.
profile_it() {
    says 'workload running'
    kvmprof list --json >"$LAB_OUT/$1.list.json"
    began=$(cut -d ' ' -f 1 /proc/uptime)
    attach "$1" "$2" --tasks
    # Names, by the kernel that was found in memory: the release comes with them.
    until status named && grep -q '"release":"' /run/named && [ "$(count)" -gt 0 ]; do usleep 10000; done
    echo "from $began to $(cut -d ' ' -f 1 /proc/uptime) s" >"$LAB_OUT/$1.named"
    # The thread that reads them may still read the kernel's code.
    until kvmprof processes --socket "$socket" --json >"$LAB_OUT/$1.processes.json" 2>"$LAB_OUT/$1.processes.said"; do
        alive "no processes: $(cat "$LAB_OUT/$1.processes.said")"
        usleep 500000
    done
    sampled 200
    detach
    attach "$1.kernel" "$2" --capture kernel --host-stacks
    sampled 400
    detach
    ${3:+"$3" "$2"}
    tell halt
    says halted
    attach "$1.halted" "$2"
    until now=$(ticks) && [ "$now" -ge 150 ]; do
        alive "$now ticks while it is halted"
        usleep 500000
    done
    tell over
    attach_ended
    ended
}

# reboot_it GUEST: a guest of QEMU's reboots under two kvmprofs, which know its kernel again afterwards.
reboot_it() {
    attach "$1.reboot.kernel" "$1" --capture kernel
    by_kernel=$attached
    attach "$1.reboot" "$1"
    by_ptrace=$attached
    sampled 60
    # Until now a reboot would have ended it: a guest that crashes is not to start again.
    for command in qmp_capabilities 'set-action", "arguments": {"reboot": "reset"}, "id": "1'; do
        echo "{\"execute\": \"$command\"}" >"/run/$1.qmp.in"
    done
    tell again
    until [ "$(grep -c '^workload running' "$console")" -ge 2 ]; do
        is_over && fail 93 "over before it had started again"
        alive "$(wc -c <"$console") bytes on the console after its reboot"
        usleep 50000
    done
    for what in "$1.reboot" "$1.reboot.kernel"; do
        socket=/run/$what.attached
        gathered_before=$(count)
        sampled 100
        attached=$by_ptrace
        [ "$what" = "$1.reboot" ] || attached=$by_kernel
        detach
    done
    # A guest that crashes from now on starts again, too.
    [ "$(grep -c '^workload running' "$console")" -eq 2 ] || fail 94 "the guest has reset itself"
}

for guest in $(cat /lab/guests); do
    case $guest in
    own)
        start own --kernel /lab/vmlinuz --initrd /lab/guest.cpio --cpus 2 --memory 512M --hz 50 \
            --cmdline "console=ttyS0 $quick"
        profile_it own "$machine"
        ;;
    qemu)
        monitored qemu 2 '' -M pc -m 512
        profile_it qemu qemu reboot_it
        ;;
    memfd)
        monitored memfd 1 pti=on -M q35,memory-backend=ram -m 4608 \
            -object memory-backend-memfd,id=ram,size=4608M
        profile_it memfd memfd
        ;;
    esac
done
