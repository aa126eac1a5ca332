# What the guests of this test share.
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
