export PATH=/bin
mount -t devtmpfs none /dev
mount -t proc none /proc
mount -t sysfs none /sys
uname -r | sed 's/^/release /'

load() {
    for module in /modules/*.ko; do
        insmod "$module" 2>/run/insmod || grep -q 'File exists' /run/insmod || cat /run/insmod
    done
}

# port NAME: its node, once it is there.
port() {
    until grep -qx "$1" /sys/class/virtio-ports/*/name 2>/dev/null; do usleep 20000; done
    echo "/dev/$(basename "$(dirname "$(grep -lx "$1" /sys/class/virtio-ports/*/name)")")"
}

# hello NAME: says hello on descriptor 4, and what the answer begins with.
hello() {
    printf '\20\0\0\0\1\0\0\0\1\0\0\0\0\0\0\0kvmprof\0\1\0\1\0\0\0\0\0' >&4
    echo "$1 $(head -c 48 <&4 | hexdump -v -e '1/1 "%02x"')"
}

# opens NAME DEVICE: opens that device (a digit) on descriptor 4, and says what came of it.
opens() {
    printf "\\10\\0\\0\\0\\2\\0\\0\\0\\2\\0\\0\\0\\0\\0\\0\\0\\$2\\0\\0\\0\\0\\0\\0\\0" >&4
    echo "$1 $(head -c 16 <&4 | hexdump -v -e '1/1 "%02x"')"
}

mkdir -p /run
load
node=$(port kvmprof.0)
echo "names $(cat /sys/class/virtio-ports/*/name | tr '\n' ' ')"
exec 4<>"$node"
hello greeted
opens opened 1
# A second port at the same time; pcs is exclusive, whoever has it.
exec 5>&4 4<>"$(port kvmprof.1)"
hello beside
opens busy 1
exec 4>&- 5>&-

exec 4<>"$node"
hello again
opens reopened 1
# The driver lets go of the device while the port is open.
device=$(basename /sys/bus/virtio/drivers/virtio_console/virtio*)
echo "$device" >/sys/bus/virtio/drivers/virtio_console/unbind
exec 4>&-
if grep -q '^virtio_console ' /proc/modules; then
    rmmod virtio_console
    load
    echo 'reloaded as a module'
else
    echo "$device" >/sys/bus/virtio/drivers/virtio_console/bind
    echo 'bound again'
fi
exec 4<>"$(port kvmprof.0)"
hello new
opens free 1

# One after the other, on both: each is a connection of its own, and answered.
exec 4>&-
for round in 0 1 2 3 4 5 6 7 8 9; do
    exec 4<>"$(port kvmprof.$((round % 2)))"
    hello "round$round"
    opens "pcs$round" 1
    exec 4>&-
done

# What isn't the protocol ends in a hang-up, and the port can be opened again.
exec 4<>"$(port kvmprof.0)"
printf 'GET / HTTP/1.1\r\nHost: kvmprof\r\n\r\n' >&4
echo "hung up after $(wc -c <&4)"
exec 4>&-
until exec 4<>"$(port kvmprof.0)" && hello polite | tee /run/polite | grep -q 'polite 2'; do usleep 20000; done
cat /run/polite

echo ready
read -r word
poweroff -f
