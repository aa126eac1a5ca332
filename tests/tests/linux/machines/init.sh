echo "cpus $(nproc)"
sed -n 's/^MemTotal: */memory /p' /proc/meminfo
grep -q '^flags.* la57' /proc/cpuinfo && echo 'levels 5' || echo 'levels 4'
uname -r | sed 's/^/release /'
hog & echo "hog is $!"
echo ready
read -r word
poweroff -f
