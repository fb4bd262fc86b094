# cmake -DLIBRARY=... -DREADELF=... -DMACHINE=... -P versions.cmake: the library loads into containers with any glibc since
# 2.17. What it needs is glibc's own, under versions that release has.
cmake_minimum_required(VERSION 3.20)

set(glibc libc.so.6 libdl.so.2 libpthread.so.0 ld-linux-x86-64.so.2 ld-linux-aarch64.so.1)
set(versions_x86_64 GLIBC_2.2.5 GLIBC_2.3 GLIBC_2.3.2 GLIBC_2.3.3 GLIBC_2.3.4 GLIBC_2.4 GLIBC_2.5 GLIBC_2.6 GLIBC_2.7
    GLIBC_2.8 GLIBC_2.9 GLIBC_2.10 GLIBC_2.11 GLIBC_2.12 GLIBC_2.13 GLIBC_2.14 GLIBC_2.15 GLIBC_2.16 GLIBC_2.17)
set(versions_aarch64 GLIBC_2.17) # its first
if(NOT DEFINED versions_${MACHINE})
    message(FATAL_ERROR "no table of versions for ${MACHINE}")
endif()

execute_process(COMMAND ${READELF} --wide -d ${LIBRARY} OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "Shared library: \\[[^]]+" needed "${dynamic}")
foreach(line ${needed})
    string(REGEX REPLACE ".*\\[" "" library "${line}")
    if(NOT library IN_LIST glibc)
        message(SEND_ERROR "it needs ${library}")
    endif()
endforeach()

execute_process(COMMAND ${READELF} --wide --dyn-syms ${LIBRARY} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "UND [A-Za-z0-9_]+@+[A-Za-z0-9_.]+" imported "${symbols}")
foreach(line ${imported})
    string(REGEX REPLACE ".*@" "" version "${line}")
    if(NOT version IN_LIST versions_${MACHINE})
        string(REGEX REPLACE "UND " "" symbol "${line}")
        message(SEND_ERROR "${symbol}: older C libraries lack it (src/prim/old_glibc.h)")
    endif()
endforeach()

# Without a version, or the sanitizers would pass unseen.
string(REGEX MATCHALL "UND [A-Za-z0-9_]+\n" unversioned "${symbols}")
foreach(line ${unversioned})
    string(REGEX REPLACE "UND |\n" "" symbol "${line}")
    if(NOT symbol MATCHES "^(_ITM_(de)?registerTMCloneTable|__gmon_start__)$")
        message(SEND_ERROR "${symbol} is needed from nowhere in particular")
    endif()
endforeach()
list(LENGTH imported count)
message(STATUS "${count} imports of glibc, none newer than 2.17")
