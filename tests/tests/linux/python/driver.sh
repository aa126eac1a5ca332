# A guest whose programs are in Python, recorded until so many samples were taken.
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 256M --jitter \
    --cmdline "console=ttyS0 $quick"
says 'workload running'
record guest.kvmprof
sampled 1500
stop_recording
tell stop
says 'spent all'
ended
kvmprof report "$LAB_OUT/guest.kvmprof" >"$LAB_OUT/report"
# The functions of Python have no time of their own then, as the interpreter has it.
kvmprof report --native --sort total --top 100 "$LAB_OUT/guest.kvmprof" >"$LAB_OUT/report.native"
