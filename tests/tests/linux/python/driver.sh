# Guests whose programs are in Python, recorded until so many samples were taken.
for interpreter in python3.11 python3.9; do
    start $interpreter --kernel /lab/vmlinuz --initrd /lab/$interpreter.cpio --memory 256M --jitter \
        --cmdline "console=ttyS0 $quick"
    says 'workload running'
    record $interpreter.kvmprof
    sampled 1500
    stop_recording
    tell stop
    says 'spent all'
    ended
    kvmprof report "$recording" >"$LAB_OUT/$interpreter.report"
    # The functions of Python have no time of their own then, as the interpreter has it.
    kvmprof report --native --sort total --top 100 "$recording" >"$LAB_OUT/$interpreter.native"
done
