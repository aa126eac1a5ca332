# The first process's console is hvc0, once there is one: its driver is a module.
export PATH=/bin
mount -t devtmpfs none /dev
mount -t proc none /proc
mount -t sysfs none /sys
for module in /modules/*.ko; do
    insmod "$module"
done
# The node is there before the console behind it.
until (: </dev/hvc0) 2>/dev/null; do usleep 20000; done
exec </dev/hvc0 >/dev/hvc0 2>&1
echo "active $(cat /sys/class/tty/console/active)"

# becomes ROWS COLUMNS: waits until hvc0 has this size.
becomes() {
    until [ "$(stty size)" = "$1 $2" ]; do usleep 20000; done
    stty size
}

seq 1 1000 | sed 's/^/line /'
echo "size $(becomes 33 111)"
echo ready
echo "later $(becomes 44 122)"
echo resized
read -r word
echo "typed $word"
poweroff -f
