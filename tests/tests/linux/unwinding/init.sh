odd &
odd &
own &
headless &
lazy &
goes &
# One makes code as a process of the guest, one as the first process of its own namespaces.
generates &
unshare -p -f -m own_generates &
