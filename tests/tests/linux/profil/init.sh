mount -t sysfs none /sys
for module in /modules/*.ko; do insmod "$module"; done

if grep -q limited /proc/cmdline; then
    # The host forbids it.
    pcsd || poweroff -f
    profil_solaris refused
    ls -l /dev/profil
    poweroff -f
fi

uname -r | sed 's/^/release /'
profil_solaris "without pcsd"
pcsd --mode 0640 --group 7 || poweroff -f
ls -l /dev/profil /dev/pcs
echo 1 > /proc/sys/vm/nr_hugepages
# Nothing has been profiled before: the host's clock starts with the recorder that waits for this.
echo 'the rates are next'
read -r word
profil_rates
echo 'the rates are over'
profil_solaris
profil_aix
profil_hostile
LD_PRELOAD=/lib/libkvmprof.so.1 profil_preload
cd /run || exit
profil_pg
echo 'gmon begin'
gzip -c gmon.out | base64
echo 'gmon end'
profil_life
profil_inherit
dmesg | grep 'pcsd:'
poweroff -f
