# __shared__ declarations become calls that find the block's variable; see cuda_runtime.h.
s/extern __shared__ (__align__\([0-9]+\) |alignas\([0-9]+\) )?([A-Za-z0-9_:<>, ]+[ *])([A-Za-z0-9_]+)\[\];/EMU_DYNAMIC(\3, \2);/
s/__shared__ (__align__\([0-9]+\) |alignas\([0-9]+\) )?([A-Za-z0-9_:<>]+( [A-Za-z0-9_]+)?) ([A-Za-z0-9_]+)((\[[^]]*\])*), ([A-Za-z0-9_]+)((\[[^]]*\])*);/EMU_STATIC(\4, \2\5); EMU_STATIC(\7, \2\8);/
s/__shared__ (__align__\([0-9]+\) |alignas\([0-9]+\) )?([A-Za-z0-9_:<>]+( [A-Za-z0-9_]+)?) ([A-Za-z0-9_]+)((\[[^]]*\])*);/EMU_STATIC(\4, \2\5);/
