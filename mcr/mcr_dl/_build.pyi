# Written by the build (CMakeLists.txt) and installed with _C.
TORCH: str
