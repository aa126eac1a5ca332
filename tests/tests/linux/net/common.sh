# What the guests of this test share.
export PATH=/bin
mount -t devtmpfs none /dev
mount -t proc none /proc
mount -t sysfs none /sys
mkdir -p /run
for module in /modules/*.ko; do
    insmod "$module" 2>/run/insmod || grep -q 'File exists' /run/insmod || cat /run/insmod
done
ip link set lo up
ip link set eth0 up

# carrier VALUE: waits until the link is down (0) or up (1), and says so.
carrier() {
    until [ "$(cat /sys/class/net/eth0/carrier)" = "$1" ]; do usleep 20000; done
    echo "carrier $1"
}

# fetch NAME URL: the checksum of what is there. After a failure it is asked for again.
fetch() {
    until wget -q -O /run/fetched "$2" 2>/run/wget; do usleep 100000; done
    echo "$1 $(sha256sum </run/fetched | cut -d ' ' -f 1)"
}

# What the device and the driver have agreed on: a digit for each feature bit.
features() { echo "features $(cat /sys/class/net/eth0/device/features)"; }

# interrupted: waits for the link's end and its return, while something is fetched. Connections are at their end with passt, which
# the receiving side doesn't hear: it would wait for ever.
interrupted() {
    carrier 0
    pidof wget >/run/fetching && echo "interrupted"
    carrier 1
    killall wget
}
