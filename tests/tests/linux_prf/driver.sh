for release in 6.1 6.12; do
    # No clock has run when the client comes: nothing was sampled, nobody knows where the kernel is.
    start "$release" --kernel "/lab/$release" --initrd "/lab/$release.cpio" \
        --cmdline 'console=ttyS0 quiet panic=-1' --memory 256M --cpus 2
    status early && cp /run/early "$LAB_OUT/$release.early"
    says ready
    SOCKET=$socket OUT=$LAB_OUT/$release /lab/client --ignored --exact client --nocapture >&2 || exit 94
    tell modules
    says 'modules come and go'
    gathered_before=$(count)
    kvmprof record --socket "$socket" --stacks kernel --output "$LAB_OUT/$release.kvmprof" 3>&- &
    recording=$!
    sampled 800
    kill -TERM $recording
    wait $recording || exit 93
    tell off
    ended
done
