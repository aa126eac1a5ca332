qemu qemu 2 '' -M pc -m 512
says 'workload running'
attach_both qemu
both 300
detach_both
tell over
ended
