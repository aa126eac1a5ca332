mount -t sysfs none /sys

# How long a vCPU may stand still, by half, before the kernel's watchdog says so.
echo 3 >/proc/sys/kernel/watchdog_thresh

# A guest without the button's driver, and one in which nobody reads what that makes of it.
if grep -q idle /proc/cmdline; then
    for module in /modules/*.ko; do insmod "$module"; done
elif ! grep -q deaf /proc/cmdline; then
    for module in /modules/*.ko; do insmod "$module"; done
    until [ -c /dev/input/event0 ]; do usleep 20000; done
    # As acpid or logind do it, whatever the event is: there is no other input device.
    { dd if=/dev/input/event0 of=/dev/null bs=24 count=1 2>/dev/null && echo pressed && poweroff -f; } &
fi
while :; do :; done &
echo ready
while read -r word; do
    case $word in
    reboot) reboot -f ;;
    lockups) echo "lockups $(dmesg | grep -c lockup)" ;;
    esac
done
while :; do sleep 1000000; done
