/* Graphs and stream capture: the part of the CUDA driver ABI about them, under the vendor's own names.
 *
 * Source: the public reference of the CUDA driver API. Included by cuda_fn.h; where NVIDIA's own header was included
 * first, the types step aside. */
#ifndef VGPU_ABI_CUDA_GRAPH_H
#define VGPU_ABI_CUDA_GRAPH_H

#include "vgpu/abi/cuda_types.h"

#ifndef __cuda_cuda_h__

typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUkern_st *CUkernel;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;
typedef void (*CUhostFn)(void *userData);

typedef enum CUgraphNodeType_enum {
    CU_GRAPH_NODE_TYPE_KERNEL = 0,
    CU_GRAPH_NODE_TYPE_MEMCPY = 1,
    CU_GRAPH_NODE_TYPE_MEMSET = 2,
    CU_GRAPH_NODE_TYPE_HOST = 3,
    CU_GRAPH_NODE_TYPE_GRAPH = 4,
    CU_GRAPH_NODE_TYPE_EMPTY = 5,
    CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10,
    CU_GRAPH_NODE_TYPE_MEM_FREE = 11,
    CU_GRAPH_NODE_TYPE_CONDITIONAL = 13
} CUgraphNodeType;

typedef enum CUstreamCaptureMode_enum {
    CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2
} CUstreamCaptureMode;

typedef enum CUstreamCaptureStatus_enum {
    CU_STREAM_CAPTURE_STATUS_NONE = 0,
    CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
    CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2
} CUstreamCaptureStatus;

typedef enum CUgraphMem_attribute_enum {
    CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT = 0,
    CU_GRAPH_MEM_ATTR_USED_MEM_HIGH = 1,
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2,
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH = 3
} CUgraphMem_attribute;

typedef enum CUgraphInstantiateResult_enum {
    CUDA_GRAPH_INSTANTIATE_SUCCESS = 0,
    CUDA_GRAPH_INSTANTIATE_ERROR = 1
} CUgraphInstantiateResult;

typedef enum CUgraphInstantiate_flags_enum {
    CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH = 1,
    CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD = 2,
    CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH = 4,
    CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY = 8
} CUgraphInstantiate_flags;

typedef enum CUgraphExecUpdateResult_enum {
    CU_GRAPH_EXEC_UPDATE_SUCCESS = 0,
    CU_GRAPH_EXEC_UPDATE_ERROR = 1,
    CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED = 2,
    CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED = 3,
    CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED = 6
} CUgraphExecUpdateResult;

typedef struct CUgraphExecUpdateResultInfo_st {
    CUgraphExecUpdateResult result;
    CUgraphNode errorNode;
    CUgraphNode errorFromNode;
} CUgraphExecUpdateResultInfo;

typedef struct CUDA_GRAPH_INSTANTIATE_PARAMS_st {
    cuuint64_t flags;
    CUstream hUploadStream;
    CUgraphNode hErrNode_out;
    CUgraphInstantiateResult result_out;
} CUDA_GRAPH_INSTANTIATE_PARAMS;

typedef struct CUgraphEdgeData_st {
    unsigned char from_port;
    unsigned char to_port;
    unsigned char type;
    unsigned char reserved[5];
} CUgraphEdgeData;

typedef struct CUDA_KERNEL_NODE_PARAMS_v1_st {
    CUfunction func;
    unsigned int gridDimX, gridDimY, gridDimZ;
    unsigned int blockDimX, blockDimY, blockDimZ;
    unsigned int sharedMemBytes;
    void **kernelParams;
    void **extra;
} CUDA_KERNEL_NODE_PARAMS_v1;

typedef struct CUDA_KERNEL_NODE_PARAMS_v2_st {
    CUfunction func;
    unsigned int gridDimX, gridDimY, gridDimZ;
    unsigned int blockDimX, blockDimY, blockDimZ;
    unsigned int sharedMemBytes;
    void **kernelParams;
    void **extra;
    CUkernel kern;
    CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS_v2;

typedef struct CUDA_MEMSET_NODE_PARAMS_v1_st {
    CUdeviceptr dst;
    size_t pitch;
    unsigned int value;
    unsigned int elementSize;
    size_t width;
    size_t height;
} CUDA_MEMSET_NODE_PARAMS_v1;

typedef struct CUDA_HOST_NODE_PARAMS_v1_st {
    CUhostFn fn;
    void *userData;
} CUDA_HOST_NODE_PARAMS_v1;

typedef struct CUDA_MEM_ALLOC_NODE_PARAMS_v1_st {
    CUmemPoolProps poolProps;
    const CUmemAccessDesc *accessDescs;
    size_t accessDescCount;
    size_t bytesize;
    CUdeviceptr dptr;
} CUDA_MEM_ALLOC_NODE_PARAMS;

typedef struct CUDA_MEM_FREE_NODE_PARAMS_st {
    CUdeviceptr dptr;
} CUDA_MEM_FREE_NODE_PARAMS;

/* Of the node types that this project looks into. */
typedef struct CUgraphNodeParams_st {
    CUgraphNodeType type;
    int reserved0[3];
    union {
        long long reserved1[29];
        CUDA_KERNEL_NODE_PARAMS_v2 kernel;
        CUDA_MEM_ALLOC_NODE_PARAMS alloc;
        CUDA_MEM_FREE_NODE_PARAMS free;
    };
    long long reserved2;
} CUgraphNodeParams;

/* `...MemoryType` is 1 for the host, 2 for a device, 3 for an array, 4 for whatever the pointer is. */
typedef struct CUDA_MEMCPY3D_st {
    size_t srcXInBytes, srcY, srcZ, srcLOD;
    unsigned int srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    void *srcArray;
    void *reserved0;
    size_t srcPitch, srcHeight;
    size_t dstXInBytes, dstY, dstZ, dstLOD;
    unsigned int dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    void *dstArray;
    void *reserved1;
    size_t dstPitch, dstHeight;
    size_t WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D;

#endif /* __cuda_cuda_h__ */

typedef CUresult (*PFN_cuStreamBeginCapture_v10000)(CUstream stream);
typedef CUresult (*PFN_cuStreamBeginCapture_v10010)(CUstream stream, CUstreamCaptureMode mode);
typedef CUresult (*PFN_cuStreamBeginCaptureToGraph_v12030)(CUstream stream, CUgraph graph,
                                                           const CUgraphNode *dependencies,
                                                           const CUgraphEdgeData *dependencyData,
                                                           size_t numDependencies, CUstreamCaptureMode mode);
typedef CUresult (*PFN_cuThreadExchangeStreamCaptureMode_v10010)(CUstreamCaptureMode *mode);
typedef CUresult (*PFN_cuStreamEndCapture_v10000)(CUstream stream, CUgraph *graph);
typedef CUresult (*PFN_cuStreamIsCapturing_v10000)(CUstream stream, CUstreamCaptureStatus *captureStatus);

typedef CUresult (*PFN_cuGraphCreate_v10000)(CUgraph *graph, unsigned int flags);
typedef CUresult (*PFN_cuGraphDestroy_v10000)(CUgraph graph);
typedef CUresult (*PFN_cuGraphClone_v10000)(CUgraph *clone, CUgraph original);
typedef CUresult (*PFN_cuGraphNodeFindInClone_v10000)(CUgraphNode *node, CUgraphNode original, CUgraph clone);
typedef CUresult (*PFN_cuGraphDestroyNode_v10000)(CUgraphNode node);
typedef CUresult (*PFN_cuGraphGetNodes_v10000)(CUgraph graph, CUgraphNode *nodes, size_t *numNodes);
typedef CUresult (*PFN_cuGraphGetRootNodes_v10000)(CUgraph graph, CUgraphNode *rootNodes, size_t *numRootNodes);
typedef CUresult (*PFN_cuGraphGetEdges_v10000)(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *numEdges);
typedef CUresult (*PFN_cuGraphNodeGetType_v10000)(CUgraphNode node, CUgraphNodeType *type);
typedef CUresult (*PFN_cuGraphNodeGetDependencies_v10000)(CUgraphNode node, CUgraphNode *dependencies,
                                                          size_t *numDependencies);
typedef CUresult (*PFN_cuGraphAddDependencies_v10000)(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                                      size_t numDependencies);

#define VG_GRAPH_NEW_NODE CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t numDependencies
typedef CUresult (*PFN_cuGraphAddKernelNode_v10000)(VG_GRAPH_NEW_NODE, const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams);
typedef CUresult (*PFN_cuGraphAddKernelNode_v12000)(VG_GRAPH_NEW_NODE, const CUDA_KERNEL_NODE_PARAMS_v2 *nodeParams);
typedef CUresult (*PFN_cuGraphAddMemcpyNode_v10000)(VG_GRAPH_NEW_NODE, const CUDA_MEMCPY3D *copyParams, CUcontext ctx);
typedef CUresult (*PFN_cuGraphAddMemsetNode_v10000)(VG_GRAPH_NEW_NODE, const CUDA_MEMSET_NODE_PARAMS_v1 *memsetParams,
                                                    CUcontext ctx);
typedef CUresult (*PFN_cuGraphAddHostNode_v10000)(VG_GRAPH_NEW_NODE, const CUDA_HOST_NODE_PARAMS_v1 *nodeParams);
typedef CUresult (*PFN_cuGraphAddEmptyNode_v10000)(VG_GRAPH_NEW_NODE);
typedef CUresult (*PFN_cuGraphAddChildGraphNode_v10000)(VG_GRAPH_NEW_NODE, CUgraph childGraph);
typedef CUresult (*PFN_cuGraphAddMemAllocNode_v11040)(VG_GRAPH_NEW_NODE, CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams);
typedef CUresult (*PFN_cuGraphAddMemFreeNode_v11040)(VG_GRAPH_NEW_NODE, CUdeviceptr pointer);
typedef CUresult (*PFN_cuGraphAddNode_v12020)(VG_GRAPH_NEW_NODE, CUgraphNodeParams *nodeParams);
typedef CUresult (*PFN_cuGraphAddNode_v12030)(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                              const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                              CUgraphNodeParams *nodeParams);
#undef VG_GRAPH_NEW_NODE

typedef CUresult (*PFN_cuGraphKernelNodeGetParams_v10000)(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams);
typedef CUresult (*PFN_cuGraphKernelNodeSetParams_v10000)(CUgraphNode node,
                                                          const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams);
typedef CUresult (*PFN_cuGraphKernelNodeGetParams_v12000)(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2 *nodeParams);
typedef CUresult (*PFN_cuGraphKernelNodeSetParams_v12000)(CUgraphNode node,
                                                          const CUDA_KERNEL_NODE_PARAMS_v2 *nodeParams);
typedef CUresult (*PFN_cuGraphChildGraphNodeGetGraph_v10000)(CUgraphNode node, CUgraph *graph);
typedef CUresult (*PFN_cuGraphMemAllocNodeGetParams_v11040)(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams);
typedef CUresult (*PFN_cuGraphMemFreeNodeGetParams_v11040)(CUgraphNode node, CUdeviceptr *pointer);

typedef CUresult (*PFN_cuGraphInstantiate_v10000)(CUgraphExec *exec, CUgraph graph, CUgraphNode *errorNode,
                                                  char *logBuffer, size_t bufferSize);
typedef CUresult (*PFN_cuGraphInstantiate_v11000)(CUgraphExec *exec, CUgraph graph, CUgraphNode *errorNode,
                                                  char *logBuffer, size_t bufferSize);
typedef CUresult (*PFN_cuGraphInstantiateWithFlags_v11040)(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
typedef CUresult (*PFN_cuGraphInstantiateWithParams_v12000)(CUgraphExec *exec, CUgraph graph,
                                                            CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams);
typedef CUresult (*PFN_cuGraphUpload_v11010)(CUgraphExec exec, CUstream stream);
typedef CUresult (*PFN_cuGraphLaunch_v10000)(CUgraphExec exec, CUstream stream);
typedef CUresult (*PFN_cuGraphExecDestroy_v10000)(CUgraphExec exec);
typedef CUresult (*PFN_cuGraphExecUpdate_v10020)(CUgraphExec exec, CUgraph graph, CUgraphNode *errorNode,
                                                 CUgraphExecUpdateResult *updateResult);
typedef CUresult (*PFN_cuGraphExecUpdate_v12000)(CUgraphExec exec, CUgraph graph,
                                                 CUgraphExecUpdateResultInfo *resultInfo);
typedef CUresult (*PFN_cuGraphExecKernelNodeSetParams_v10010)(CUgraphExec exec, CUgraphNode node,
                                                              const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams);
typedef CUresult (*PFN_cuGraphExecKernelNodeSetParams_v12000)(CUgraphExec exec, CUgraphNode node,
                                                              const CUDA_KERNEL_NODE_PARAMS_v2 *nodeParams);

typedef CUresult (*PFN_cuDeviceGraphMemTrim_v11040)(CUdevice device);
typedef CUresult (*PFN_cuDeviceGetGraphMemAttribute_v11040)(CUdevice device, CUgraphMem_attribute attribute,
                                                            void *value);
typedef CUresult (*PFN_cuDeviceSetGraphMemAttribute_v11040)(CUdevice device, CUgraphMem_attribute attribute,
                                                            void *value);

#endif
