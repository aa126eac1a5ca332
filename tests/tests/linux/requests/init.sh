mount -t sysfs none /sys
for module in /modules/*.ko; do insmod "$module"; done
until [ -b /dev/vda ]; do usleep 10000; done
echo 'ready'
while read -r count processes; do reads /dev/vda "$count" "$processes"; done
