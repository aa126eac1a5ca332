# A process in user mode and one that has the kernel work for it, both of which sleep most of the time: the only processor is the host's, too.
( while :; do sometimes; echo 'one more round'; sleep 2; done ) &
( while :; do dd if=/dev/zero of=/dev/null bs=64k count=1000 2>/dev/null; sleep 1; done ) &
echo workload running
while read -r word; do
    case $word in
    # Memory that the guest has never used.
    touch) dd if=/dev/zero of=/touched bs=1M count=64 2>/dev/null ;;
    over) poweroff -f ;;
    esac
done
