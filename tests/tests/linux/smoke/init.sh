mount -t sysfs none /sys
for module in /modules/*.ko; do insmod "$module"; done
dd if=/dev/zero of=/dev/null bs=4k 2>/dev/null & dd=$!
calls & calls=$!
plain & plain=$!
sleep 100000 & sleeper=$!
until [ "$(cat /proc/$sleeper/comm)" = sleep ] && grep -q S "/proc/$sleeper/stat"; do usleep 100000; done
usleep 500000
echo "waits $sleeper $(cat /proc/$sleeper/wchan)"
echo workload running
read -r word
kill $dd $calls $plain
pcsd && agent_prf
echo nodes are used
while :; do sleep 100000; done
