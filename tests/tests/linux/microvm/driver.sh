jailed virtiofsd /lab/virtiofsd
mkdir -p /run/root/bin
cp /bin/busybox /lab/calls /lab/plain /run/root/bin/
for applet in sh cat touch dd kill nproc tty uname usleep; do ln -s busybox "/run/root/bin/$applet"; done
list() { (cd "$1" && find . -exec stat -c '%n %s %Y %Z' {} + | sort); }

# Which console, which disk starts it, and how it finds its devices, is found out by the kernel.
list /run/root >/run/before
start guest --kernel /lab/libkrunfw.so --memory 256M --cpus 2 --jitter --cmdline "console=hvc0 $quick" \
    --virtiofsd /run/jailed-virtiofsd --root /run/root --record "$LAB_OUT/guest.kvmprof" --exec '
        echo "tty $(tty)"; echo "cpus $(nproc)"; echo "release $(uname -r)"
        touch /new && echo changed
        dd if=/dev/zero of=/dev/null bs=4k 2>/dev/null & dd=$!
        calls & calls=$!
        plain & plain=$!
        for program in calls plain; do eval "pid=\$$program"; echo "pid $program $pid"; done
        echo workload running
        read -r word
        kill $calls $plain $dd
        exit 7'
says 'workload running'
gathered_before=$(count)
sampled 1500
status guest.status.json
cp /run/guest.status.json "$LAB_OUT"
tell on
ended
list /run/root >/run/after
cmp /run/before /run/after && touch "$LAB_OUT/unchanged"
