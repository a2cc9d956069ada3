# Patroni 3.2 and later raise `ttl` to at least 20 seconds, and have no setting for less. This changes that bound to 8:
#   sed --in-place --file deploy/cluster/lease.sed "$(python -c 'import patroni.config as c; print(c.__file__)')"
# Without it, or with a Patroni that has another line, the lease is 20 seconds.
s/(config, 'ttl', 20)/(config, 'ttl', 8)/
