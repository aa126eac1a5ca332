mount -t sysfs none /sys
for module in /modules/*.ko; do insmod "$module"; done
# The serial numbers say which disk is which.
for disk in /sys/block/vd*; do echo "serial ${disk##*/} $(cat $disk/serial)"; done
echo "queues $(ls /sys/block/vda/mq | wc -l)"
echo "readonly $(cat /sys/block/vdc/ro)"
sha256sum </dev/vdc | sed 's/^/constant /'
mkdir /raw /qcow2
mount -t ext4 -o discard /dev/vda /raw && mount -t ext4 -o discard /dev/vdb /qcow2 && echo 'both are mounted'
for folder in /raw /qcow2; do
    (cd $folder && sha256sum from-host/* | sed "s#^#found $folder #")
done
# Files of many sizes, some of which are removed again, so that their space is discarded.
write_files() {
    mkdir -p $1/from-guest
    for number in $(seq 1 24); do
        dd if=/dev/urandom of=$1/from-guest/$number bs=$((number * 997)) count=9 conv=fsync 2>/dev/null
    done
    rm $1/from-guest/*7
    sync
}
write_files /raw
write_files /qcow2
echo 'files are written'
# To be sampled in.
(while [ ! -e /run/enough ]; do dd if=/dev/zero of=/raw/busy bs=4k count=64 conv=fsync 2>/dev/null; done) & busy=$!
read -r word
touch /run/enough
wait $busy
rm /raw/busy
for folder in /raw /qcow2; do
    (cd $folder && sha256sum from-guest/* | sed "s#^#wrote $folder #")
done
grep -E 'virtio[0-9]' /proc/interrupts | sed 's/^/interrupts /'
umount /raw /qcow2 && echo 'both are unmounted'
poweroff -f
