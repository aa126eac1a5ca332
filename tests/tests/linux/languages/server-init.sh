ip link set lo up
/bin/loom &
read -r word
: >/stop
wait $!
poweroff -f
