release=$(cat /lab/release)
# No clock has run when the client comes: nothing was sampled, nobody knows where the kernel is.
start "$release" --kernel /lab/vmlinuz --initrd /lab/guest.cpio \
    --cmdline "console=ttyS0 $quick" --memory 256M --cpus 2
status early && cp /run/early "$LAB_OUT/$release.early"
says ready
SOCKET=$socket OUT=$LAB_OUT/$release /lab/client --ignored --exact prf::client --nocapture >&2 || fail 93 "the client failed"
tell modules
says 'modules come and go'
record "$release.kvmprof" --stacks kernel
sampled 2000
stop_recording
tell off
ended
