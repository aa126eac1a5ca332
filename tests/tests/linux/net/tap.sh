carrier 1
features
ip addr add 10.9.0.2/24 dev eth0
echo "mac $(cat /sys/class/net/eth0/address)"
fetch fetched http://10.9.0.1:8080/file
cp /run/fetched /run/file
until nc 10.9.0.1 9000 </run/file; do usleep 100000; done
echo "sent all"

fetch again http://10.9.0.1:8080/long
# The tap is removed, and a tap of its name made, which isn't the guest's.
carrier 0
# As long as kvmprof ever waits before it connects again.
sleep 3
echo "looking"
read -r _
poweroff -f
