/* A stand-in for libdcmi.so: two NPUs on each of four cards, whose health is read from the file FAKE_DCMI.
 *
 * Line N of that file is the answer for /dev/davinciN: the return code and the level of the alarm.
 * Signatures follow Huawei's DCMI API reference.
 */
#include <stdio.h>
#include <stdlib.h>

enum { CARDS = 4, CHIPS = 2, ERROR = -8001, FIRST_CARD = 10 };

int dcmi_init(void) { return getenv("FAKE_DCMI") ? 0 : ERROR; }

int dcmi_get_card_list(int *count, int *cards, int length) {
    for (*count = 0; *count < CARDS && *count < length; (*count)++) cards[*count] = FIRST_CARD + *count;
    return 0;
}

int dcmi_get_device_id_in_card(int card, int *chips, int *mcu, int *cpu) {
    *chips = CHIPS, *mcu = CHIPS, *cpu = -1;
    return card < FIRST_CARD || card >= FIRST_CARD + CARDS ? ERROR : 0;
}

int dcmi_get_device_logic_id(int *logical, int card, int chip) {
    *logical = (card - FIRST_CARD) * CHIPS + chip;
    return 0;
}

int dcmi_get_device_phyid_from_logicid(unsigned logical, unsigned *number) {
    *number = logical;
    return 0;
}

int dcmi_get_device_health(int card, int chip, unsigned *health) {
    FILE *file = fopen(getenv("FAKE_DCMI"), "r");
    int code = ERROR, number = (card - FIRST_CARD) * CHIPS + chip;
    for (int line = 0; file && line <= number; line++)
        if (fscanf(file, "%d %u", &code, health) != 2) code = ERROR;
    if (file) fclose(file);
    return code;
}
