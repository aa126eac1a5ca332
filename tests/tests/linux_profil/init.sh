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
dmesg | grep 'pcsd:'
poweroff -f
