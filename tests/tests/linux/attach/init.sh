# Two processes that are busy in user mode, and one now and then; the kernel works for another.
one & one=$!
two & two=$!
( while :; do sometimes; sleep 1; done ) & sometimes=$!
# Of a module's disk of 1 TiB, if there is one: what was never written takes no memory, and what is read directly goes through the module each time.
source=if=/dev/zero
for module in /modules/*.ko; do
    [ ! -e "$module" ] || ! insmod "$module" rd_nr=1 rd_size=1073741824 || source='if=/dev/ram0 iflag=direct'
done
dd $source of=/dev/null bs=64k 2>/dev/null & dd=$!
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
