# A process in user mode, and one that has the kernel work for it.
mount -t sysfs none /sys
for module in /modules/*.ko; do insmod "$module"; done
kvmprof-tools install-links /bin
pcsd && echo 'pcsd serves'
calls & calls=$!
dd if=/dev/zero of=/dev/null bs=64k 2>/dev/null & copy=$!
echo "calls is $calls"
echo "copy is $copy"
echo workload running
read -r word

getpc --all 3 >/run/picture
echo "picture $(pcstat --json </run/picture)"
kill $calls
# To read all functions from /proc/kallsyms takes half a minute here.
prfld --no-slide /namelist
prfsnap log
sleep 1
prfsnap log
echo "profile begins"
prfpr log 1 /namelist
echo "profile ends"
prfstat off
echo 'all done'
poweroff -f
