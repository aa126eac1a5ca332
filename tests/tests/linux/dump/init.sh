# One process is busy in user mode, and one sleeps in the kernel.
one & one=$!
sleep 1000000 & sleeper=$!
echo "pid one $one"
echo "pid sleep $sleeper"
echo "pid init $$"
# What programs find out from a dump, as the guest's kernel says it.
echo "release $(uname -r)"
echo "cpus $(grep -c ^processor /proc/cpuinfo)"
echo workload running
while read -r word; do
    case $word in
    over) poweroff -f ;;
    esac
done
