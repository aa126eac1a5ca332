if [ -e /sys/class/virtio-ports ] && ls /sys/class/virtio-ports/* >/dev/null 2>&1; then
    exec 4<>"$(port kvmprof.0)"
    hello greeted
    for device in 1 2 3 4 5; do opens "device$device" "$device"; done
else
    echo 'no ports'
fi
echo ready
read -r word
poweroff -f
