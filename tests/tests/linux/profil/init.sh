mount -t sysfs none /sys
for module in /modules/*.ko; do insmod "$module"; done

uname -r | sed 's/^/release /'
profil_solaris "without pcsd"
pcsd --mode 0640 --group 7 || poweroff -f
ls -l /dev/profil /dev/pcs
echo 1 > /proc/sys/vm/nr_hugepages
profil_solaris
profil_hostile
profil_life
profil_inherit
# What it says is shown at its end: the console's accesses would be exits of the program's.
pmc_life >/run/said 2>&1
cat /run/said
dmesg | grep 'pcsd:'
poweroff -f
