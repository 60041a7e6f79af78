/* Loads the library while it runs, by each name that programs use: it is always the one that the program is linked to, also
 * where the library of the system is installed. */
#include "common.h"
#include <dlfcn.h>

int main(void) {
	static const char *const names[] = {"libibverbs.so.1", "libibverbs.so"};
	void *linked = dlsym(RTLD_DEFAULT, "ibv_get_device_list");
	check(linked != NULL, "the program is linked to the library");
	for (int i = 0; i < 2; i++) {
		void *library = dlopen(names[i], RTLD_LAZY);
		check(library != NULL, names[i]);
		if (library) {
			check(dlsym(library, "ibv_get_device_list") == linked, names[i]);
		}
	}
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	check(list && count == 1, "a device");
	ibv_free_device_list(list);
	printf("%d failures\n", failures);
	return failures != 0;
}
