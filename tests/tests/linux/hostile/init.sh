mount -t sysfs none /sys
mkdir -p /run /rw
export PATH=/bin
# Nobody moves such a page.
echo 1 >/proc/sys/vm/nr_hugepages
echo "attacking"
read -r _
hostile_rings 0xd0000000 || echo "given up: $?"
echo "over"
read -r _

# The devices are as they were before, for the kernel's own drivers.
for module in /modules/*.ko; do insmod "$module" 2>/run/insmod || grep -q 'File exists' /run/insmod || cat /run/insmod; done
ip addr add 10.0.2.15/24 dev eth0
ip link set eth0 up
ip route add default via 10.0.2.2
until wget -q -O /run/fetched http://10.0.2.2:8080/file 2>/run/wget; do usleep 100000; done
echo "network $(sha256sum </run/fetched | cut -d ' ' -f 1)"
until mount -t virtiofs work /rw 2>/run/mount; do usleep 300000; done
echo "folder $(sha256sum </rw/file | cut -d ' ' -f 1)"
sockets connect vsock:2:1234 </rw/file >/run/answer && echo "sockets $(sha256sum </run/answer | cut -d ' ' -f 1)"
echo "usable"
read -r _
poweroff -f
