# Guests with a program in a language, recorded until so many samples were taken, from when both of its threads have had stacks with its functions: large files are read for seconds.

# has FUNCTION: whether the recording has it, in some class or in none.
has() { kvmprof export --format folded "$recording" 2>/dev/null 3>&- | grep -q "[;.]$1 ("; }

for image in /lab/*.cpio; do
    program=$(basename "$image" .cpio)
    case $program in
    java*) memory=1G ;; # All modules of the JDK are in one file.
    *) memory=512M ;;
    esac
    # The host's kernel doesn't know functions of languages, so that kvmprof takes the samples after all.
    case $program in
    python3.9) clock='--clock kernel' ;;
    *) clock=--jitter ;;
    esac
    start $program --kernel /lab/vmlinuz --initrd $image --memory $memory $clock \
        --cmdline "console=ttyS0 $quick"
    says 'workload running'
    record $program.first.kvmprof
    first=$recorder
    until has card && has comb; do
        is_over && fail 90 "over before its functions were known"
        alive "$(count) samples without both threads' functions"
        usleep 500000
    done
    tell begin
    until [ "$(grep -c '^begun' "$console")" -eq 2 ]; do
        is_over && fail 91 "over before both threads had begun"
        usleep 50000
    done
    record $program.kvmprof
    kill -TERM $first
    wait $first || fail 94 "the first recorder failed"
    sampled 1500
    status $program.json && cp /run/$program.json "$LAB_OUT"
    stop_recording
    tell stop
    says 'spent all'
    ended
    kvmprof report "$recording" >"$LAB_OUT/$program.report"
    # The functions of the language have no time of their own then, as the machine code has it.
    kvmprof report --native --sort total --top 100 "$recording" >"$LAB_OUT/$program.native"
done
