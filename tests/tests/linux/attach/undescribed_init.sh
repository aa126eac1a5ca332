# One process is busy, and another one reads from a module's disk, of 1 TiB: what was never written takes no memory.
mount -t sysfs none /sys
for module in /modules/*.ko; do
    insmod "$module" rd_nr=1 rd_size=1073741824 || echo "no $module"
done
one & one=$!
echo "pid one $one"
# What is read directly goes through the module each time.
dd if=/dev/ram0 of=/dev/null bs=64k iflag=direct 2>/dev/null & dd=$!
echo "pid dd $dd"
echo workload running
read -r word
poweroff -f
