# Makes the disk's image of the root folder's archive. Arguments: the folder that has root.tar, and takes what is made; the
# file system's size.
set -e
cd "$1"
mkdir tree
tar -C tree -xf root.tar --exclude './dev/*'
cp tree/boot/vmlinuz-* vmlinuz
cp tree/boot/initrd.img-* initrd.img
truncate -s "$2" root.ext4
PATH=$PATH:/sbin mkfs.ext4 -q -F -d tree root.ext4
qemu-img convert -O qcow2 root.ext4 debian.qcow2
rm -rf root.tar root.ext4 tree
