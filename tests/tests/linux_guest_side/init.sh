mount -t sysfs none /sys
for module in /modules/*.ko; do insmod "$module"; done
kvmprof-tools install-links /bin
pcsd && echo 'pcsd serves'

hog_one & one=$!
dd if=/dev/zero of=/dev/null bs=64k 2>/dev/null & copy=$!
sleep 1000000 & idle=$!
echo "one is $one"
echo "copy is $copy"
echo "idle is $idle"
echo "picture $(getpc --all 3 --hz 80 --buffers 10 --buffer-size 65536 | pcstat --json)"
echo 'seen from within'
read -r word

setsid sh -c 'while :; do brief; done' & group=$!
until [ "$(cut -d ' ' -f 5 /proc/$group/stat)" = $group ]; do usleep 1000; done
echo "group $(getpc --group $group 4 --hz 80 --buffers 10 --buffer-size 65536 | pcstat --top 1000 --json)"
kill -- -$group
accounts group

while :; do cat /proc/kallsyms >/dev/null; done & reads=$!
kill $one
prfld && prfsnap log && sleep 4 && prfsnap log && echo "profile begins" && prfpr log 0.5 && echo "profile ends"
prfstat off
kill $reads
prf_cpus
echo 'all done'
poweroff -f
