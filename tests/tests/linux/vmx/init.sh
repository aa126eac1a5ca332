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

getpc --all 1 >/run/picture
echo "picture $(pcstat --json </run/picture)"
# prfld reads the addresses of all functions.
kill $calls $copy
prfld
dd if=/dev/zero of=/dev/null bs=64k 2>/dev/null &
prfsnap log
sleep 1
prfsnap log
echo "profile begins"
prfpr log 1
echo "profile ends"
prfstat off
echo 'all done'
poweroff -f
