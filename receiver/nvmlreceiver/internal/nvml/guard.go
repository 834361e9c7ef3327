// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"fmt"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

const defaultLibrary = "libnvidia-ml.so.1"

// function is a C function of NVML that this package may call. go-nvml is
// linked with unresolved symbols: a call of a symbol that the driver lacks ends
// the process. So go-nvml's methods are reached through guarded only, which looks
// the symbol up first. TestGuard keeps the table in step with go-nvml and finds
// calls that go around it.
type function int

// functions has, for each function, go-nvml's method and its C symbols. The method
// calls the newest symbol that is there: one of them suffices.
var functions []entry

type entry struct {
	method  string
	symbols []string
}

func enter(method string, symbols ...string) function {
	functions = append(functions, entry{method, symbols})
	return function(len(functions) - 1)
}

var (
	fnInit              = enter("Init", "nvmlInit_v2", "nvmlInit")
	fnShutdown          = enter("Shutdown", "nvmlShutdown")
	fnDriverVersion     = enter("SystemGetDriverVersion", "nvmlSystemGetDriverVersion")
	fnCUDAVersion       = enter("SystemGetCudaDriverVersion", "nvmlSystemGetCudaDriverVersion")
	fnDeviceCount       = enter("DeviceGetCount", "nvmlDeviceGetCount_v2", "nvmlDeviceGetCount")
	fnDeviceByIndex     = enter("DeviceGetHandleByIndex", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex")
	fnUUID              = enter("GetUUID", "nvmlDeviceGetUUID")
	fnName              = enter("GetName", "nvmlDeviceGetName")
	fnSerial            = enter("GetSerial", "nvmlDeviceGetSerial")
	fnPCIInfo           = enter("GetPciInfo", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo")
	fnMinor             = enter("GetMinorNumber", "nvmlDeviceGetMinorNumber")
	fnVBIOS             = enter("GetVbiosVersion", "nvmlDeviceGetVbiosVersion")
	fnMemoryV2          = enter("GetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo_v2")
	fnMemory            = enter("GetMemoryInfo", "nvmlDeviceGetMemoryInfo")
	fnUtilization       = enter("GetUtilizationRates", "nvmlDeviceGetUtilizationRates")
	fnEncoder           = enter("GetEncoderUtilization", "nvmlDeviceGetEncoderUtilization")
	fnDecoder           = enter("GetDecoderUtilization", "nvmlDeviceGetDecoderUtilization")
	fnTemperatureV      = enter("GetTemperatureV", "nvmlDeviceGetTemperatureV")
	fnTemperature       = enter("GetTemperature", "nvmlDeviceGetTemperature")
	fnFieldValues       = enter("GetFieldValues", "nvmlDeviceGetFieldValues")
	fnPower             = enter("GetPowerUsage", "nvmlDeviceGetPowerUsage")
	fnPowerLimit        = enter("GetEnforcedPowerLimit", "nvmlDeviceGetEnforcedPowerLimit")
	fnPowerLimitRange   = enter("GetPowerManagementLimitConstraints", "nvmlDeviceGetPowerManagementLimitConstraints")
	fnEnergy            = enter("GetTotalEnergyConsumption", "nvmlDeviceGetTotalEnergyConsumption")
	fnClock             = enter("GetClockInfo", "nvmlDeviceGetClockInfo")
	fnMaxClock          = enter("GetMaxClockInfo", "nvmlDeviceGetMaxClockInfo")
	fnECC               = enter("GetTotalEccErrors", "nvmlDeviceGetTotalEccErrors")
	fnClockEvents       = enter("GetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksEventReasons")
	fnClockThrottle     = enter("GetCurrentClocksThrottleReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
	fnPerformanceState  = enter("GetPerformanceState", "nvmlDeviceGetPerformanceState")
	fnMargin            = enter("GetMarginTemperature", "nvmlDeviceGetMarginTemperature")
	fnThreshold         = enter("GetTemperatureThreshold", "nvmlDeviceGetTemperatureThreshold")
	fnMemoryErrors      = enter("GetMemoryErrorCounter", "nvmlDeviceGetMemoryErrorCounter")
	fnSRAM              = enter("GetSramEccErrorStatus", "nvmlDeviceGetSramEccErrorStatus")
	fnRetiredPages      = enter("GetRetiredPages", "nvmlDeviceGetRetiredPages")
	fnRetirementPending = enter("GetRetiredPagesPendingStatus", "nvmlDeviceGetRetiredPagesPendingStatus")
	fnRemappedRows      = enter("GetRemappedRows", "nvmlDeviceGetRemappedRows")
	fnRepair            = enter("GetRepairStatus", "nvmlDeviceGetRepairStatus")
	fnPersistence       = enter("GetPersistenceMode", "nvmlDeviceGetPersistenceMode")
	fnECCMode           = enter("GetEccMode", "nvmlDeviceGetEccMode")
	fnMIGMode           = enter("GetMigMode", "nvmlDeviceGetMigMode")
	fnGSPMode           = enter("GetGspFirmwareMode", "nvmlDeviceGetGspFirmwareMode")
	fnConfidential      = enter("SystemGetConfComputeState", "nvmlSystemGetConfComputeState")
	fnPCIeWidth         = enter("GetCurrPcieLinkWidth", "nvmlDeviceGetCurrPcieLinkWidth")
	fnPCIeWidthMax      = enter("GetMaxPcieLinkWidth", "nvmlDeviceGetMaxPcieLinkWidth")
	fnPCIeGeneration    = enter("GetCurrPcieLinkGeneration", "nvmlDeviceGetCurrPcieLinkGeneration")
	fnPCIeGenerationMax = enter("GetMaxPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkGeneration")
	fnNVLinkState       = enter("GetNvLinkState", "nvmlDeviceGetNvLinkState")
	fnFabricV           = enter("GetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfoV")
	fnFabric            = enter("GetGpuFabricInfo", "nvmlDeviceGetGpuFabricInfo")
	fnCompute           = enter("GetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses")
	fnGraphics          = enter("GetGraphicsRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2", "nvmlDeviceGetGraphicsRunningProcesses")
	fnMIGCount          = enter("GetMaxMigDeviceCount", "nvmlDeviceGetMaxMigDeviceCount")
	fnMIGDevice         = enter("GetMigDeviceHandleByIndex", "nvmlDeviceGetMigDeviceHandleByIndex")
	fnGPUInstance       = enter("GetGpuInstanceId", "nvmlDeviceGetGpuInstanceId")
	fnComputeInstance   = enter("GetComputeInstanceId", "nvmlDeviceGetComputeInstanceId")
	fnEventCreate       = enter("EventSetCreate", "nvmlEventSetCreate")
	fnEventRegister     = enter("RegisterEvents", "nvmlDeviceRegisterEvents")
	fnEventWait         = enter("EventSetWait", "nvmlEventSetWait_v2", "nvmlEventSetWait")
	fnEventFree         = enter("EventSetFree", "nvmlEventSetFree")
	fnGPMSupport        = enter("GpmQueryDeviceSupport", "nvmlGpmQueryDeviceSupport")
	fnGPMAlloc          = enter("GpmSampleAlloc", "nvmlGpmSampleAlloc")
	fnGPMFree           = enter("GpmSampleFree", "nvmlGpmSampleFree")
	fnGPMSample         = enter("GpmSampleGet", "nvmlGpmSampleGet")
	fnGPMSliceSample    = enter("GpmMigSampleGet", "nvmlGpmMigSampleGet")
	fnGPMMetrics        = enter("GpmMetricsGet", "nvmlGpmMetricsGet")
)

// guarded runs call, which has to be fn's method of go-nvml or fn called
// directly, if the library has a symbol for it. Codes that are an answer where
// the call is made are no failures. A panic, such as go-nvml's over an answer
// that does not fit its question, is one.
func guarded[T any](l *library, fn function, call func() (T, gonvml.Return), answers ...Code) (value T, code Code) {
	if !l.binding.has[fn] {
		return value, FunctionNotFound
	}
	defer func() {
		if recover() != nil {
			var none T
			value, code = none, Panicked
		}
		if code.failure() && l.failure != nil && !slices.Contains(answers, code) {
			l.failure(functions[fn].symbols[0], code)
		}
	}()
	began := time.Now()
	value, ret := call()
	if l.timing != nil && fn != fnEventWait { // which takes long by intention
		l.timing(time.Since(began))
	}
	return value, Code(ret)
}

// binding is the one NVML library of the process. The dynamic linker binds each symbol
// once, and go-nvml keeps its versioned symbols in package variables. So all receivers
// share one go-nvml object: it rewrites those variables only while nothing is
// initialised.
type binding struct {
	path string
	raw  gonvml.Interface
	has  []bool // by function
	// direct are the symbols of the functions that are called directly.
	direct []unsafe.Pointer
	// unversioned says that lists of processes are of the first version.
	unversioned bool
	// pin keeps the library mapped after nvmlShutdown: symbols that the linker
	// has bound would otherwise point into nothing.
	pin *dl.DynamicLibrary
}

var process struct {
	sync.Mutex
	binding *binding
}

// bind loads the library, or returns the loaded library.
func bind(path string) (*binding, error) {
	if path == "" {
		path = defaultLibrary
	}
	process.Lock()
	defer process.Unlock()
	if b := process.binding; b != nil {
		if b.path != path {
			return nil, fmt.Errorf("%w: %q, so %q cannot be", ErrOtherLibrary, b.path, path)
		}
		return b, nil
	}

	pin := dl.New(path, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := pin.Open(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLibraryNotFound, err)
	}
	b := &binding{path: path, raw: gonvml.New(gonvml.WithLibraryPath(path)), pin: pin, has: make([]bool, len(functions)), direct: make([]unsafe.Pointer, len(functions))}
	for fn, f := range functions {
		for _, symbol := range f.symbols {
			if pin.Lookup(symbol) == nil {
				b.has[fn] = true
				break
			}
		}
	}
	b.look()
	process.binding = b
	return b, nil
}
