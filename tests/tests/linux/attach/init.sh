# Two processes that are busy in user mode, and one now and then; the kernel works for another.
one & one=$!
two & two=$!
( while :; do sometimes; sleep 1; done ) & sometimes=$!
dd if=/dev/zero of=/dev/null bs=64k 2>/dev/null & dd=$!
echo "pid one $one"
echo "pid two $two"
echo "pid dd $dd"
echo workload running
while read -r word; do
    case $word in
    halt)
        kill $one $two $sometimes $dd
        wait
        echo halted
        ;;
    again) reboot -f ;;
    over) poweroff -f ;;
    esac
done
