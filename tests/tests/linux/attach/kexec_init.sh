# One process is busy. When it is told to, the guest starts another kernel, if it has one.
one & one=$!
echo "pid one $one"
echo "running $(uname -r)"
echo workload running
while read -r word; do
    case $word in
    next) kexec /next/vmlinuz /next/guest.cpio "$(cat /proc/cmdline)" ;;
    over) poweroff -f ;;
    esac
done
