echo ready
read -r word
case $word in
poweroff) poweroff -f ;;
reboot) reboot -f ;;
burn)
    dd if=/dev/zero of=/dev/null bs=64k &
    echo "burns $!"
    ;;
panic) echo c >/proc/sysrq-trigger ;;
esac
while :; do sleep 1000000; done
