/* The cache of the hub's own client, read only. */
#ifndef CONVERT_HUBCACHE_H
#define CONVERT_HUBCACHE_H

#include "convert/hubenv.h"
#include "convert/hubtree.h"

/* Where a repository lies in it, malloc'd; NULL if there can be no cache, or no memory. */
char *hubcache_folder(const struct hubenv *env, const struct hubspec *s);
/* A file of the listed size, by its snapshot or by its digest; malloc'd, NULL if it is not there. */
char *hubcache_find(const char *folder, const char *commit, const struct hubtree_file *f);

#endif
