mount -t sysfs none /sys
mkdir -p /run
for module in /modules/*.ko; do insmod "$module" || echo "no $module"; done
echo "date $(date -u +%Y-%m-%d) $(date -u +%s)"
echo "wall $(dmesg | grep -c 'kvm-clock: Using msrs')"
echo "source $(cat /sys/devices/system/clocksource/clocksource0/current_clocksource)"
echo "ptp $(cat /sys/class/ptp/ptp0/clock_name 2>/dev/null || echo none)"
echo "rtc $(ls /sys/class/rtc 2>/dev/null | wc -l)"

# Both directions at once, of a connection that the guest makes.
head -c 3000000 /dev/urandom >/run/out
echo "out $(sha256sum </run/out | cut -d ' ' -f 1)"
sockets connect vsock:2:1234 </run/out >/run/in || echo "connect $?"
echo "in $(sha256sum </run/in | cut -d ' ' -f 1)"
sockets connect vsock:2:99 </dev/null 2>&1 | sed 's/^/nobody: /'

# And of one that is made to it.
sockets listen vsock:4294967295:52 </run/out >/run/in 2>/run/listening &
until grep -qs listening /run/listening; do usleep 20000; done
echo "listening"
wait $!
echo "served $(sha256sum </run/in | cut -d ' ' -f 1)"

read -r _
poweroff -f
