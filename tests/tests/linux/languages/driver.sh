# Guests with a program in a language, recorded until so many samples were taken.
for image in /lab/*.cpio; do
    program=$(basename "$image" .cpio)
    case $program in
    java*) memory=1G ;; # All modules of the JDK are in one file.
    *) memory=512M ;;
    esac
    start $program --kernel /lab/vmlinuz --initrd $image --memory $memory --jitter \
        --cmdline "console=ttyS0 $quick"
    says 'workload running'
    record $program.kvmprof
    sampled 1500
    stop_recording
    tell stop
    says 'spent all'
    ended
    kvmprof report "$recording" >"$LAB_OUT/$program.report"
    # The functions of the language have no time of their own then, as the machine code has it.
    kvmprof report --native --sort total --top 100 "$recording" >"$LAB_OUT/$program.native"
done
