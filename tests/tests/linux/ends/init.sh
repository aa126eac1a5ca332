echo ready
read -r word
case $word in
poweroff) poweroff -f ;;
reboot) reboot -f ;;
panic) echo c >/proc/sysrq-trigger ;;
esac
while :; do sleep 1000000; done
