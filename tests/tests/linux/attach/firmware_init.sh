( while :; do :; done ) &
echo workload running
read -r word
poweroff -f
