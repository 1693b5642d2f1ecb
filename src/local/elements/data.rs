//! The periodic table: all 118 named elements as static data, with lookup by
//! atomic number and by Chinese name, English name or symbol.

use std::collections::HashMap;
use std::sync::LazyLock;

/// One chemical element of the periodic table.
#[derive(Debug)]
pub struct Element {
    /// The atomic number, from 1 to 118.
    pub number: u8,
    /// The chemical symbol, such as `Fe`.
    pub symbol: &'static str,
    /// The simplified Chinese name, always a single character.
    pub chinese: &'static str,
    /// The pinyin of the Chinese name, with its tone mark.
    pub pinyin: &'static str,
    /// The English name in the IUPAC spelling, capitalised.
    pub english: &'static str,
    /// The abridged standard atomic weight, or a mass number where no such weight exists.
    pub mass: &'static str,
    /// The period, which is the row of the table, from 1 to 7.
    pub period: u8,
    /// The group in the old notation: `IA` to `VIIA`, `IB` to `VIIB`, `VIII` or `0`.
    pub group: &'static str,
}

/// Builds one entry, so that the table below holds one element per line.
#[allow(clippy::too_many_arguments, reason = "the arguments are the columns of the table")]
const fn e(
    number: u8,
    symbol: &'static str,
    chinese: &'static str,
    pinyin: &'static str,
    english: &'static str,
    mass: &'static str,
    period: u8,
    group: &'static str,
) -> Element {
    Element { number, symbol, chinese, pinyin, english, mass, period, group }
}

/// All elements in order of atomic number.
pub static ELEMENTS: [Element; 118] = [
    e(1, "H", "氢", "qīng", "Hydrogen", "1.008", 1, "IA"),
    e(2, "He", "氦", "hài", "Helium", "4.0026", 1, "0"),
    e(3, "Li", "锂", "lǐ", "Lithium", "6.94", 2, "IA"),
    e(4, "Be", "铍", "pí", "Beryllium", "9.0122", 2, "IIA"),
    e(5, "B", "硼", "péng", "Boron", "10.81", 2, "IIIA"),
    e(6, "C", "碳", "tàn", "Carbon", "12.011", 2, "IVA"),
    e(7, "N", "氮", "dàn", "Nitrogen", "14.007", 2, "VA"),
    e(8, "O", "氧", "yǎng", "Oxygen", "15.999", 2, "VIA"),
    e(9, "F", "氟", "fú", "Fluorine", "18.998", 2, "VIIA"),
    e(10, "Ne", "氖", "nǎi", "Neon", "20.180", 2, "0"),
    e(11, "Na", "钠", "nà", "Sodium", "22.990", 3, "IA"),
    e(12, "Mg", "镁", "měi", "Magnesium", "24.305", 3, "IIA"),
    e(13, "Al", "铝", "lǚ", "Aluminium", "26.982", 3, "IIIA"),
    e(14, "Si", "硅", "guī", "Silicon", "28.085", 3, "IVA"),
    e(15, "P", "磷", "lín", "Phosphorus", "30.974", 3, "VA"),
    e(16, "S", "硫", "liú", "Sulfur", "32.06", 3, "VIA"),
    e(17, "Cl", "氯", "lǜ", "Chlorine", "35.45", 3, "VIIA"),
    e(18, "Ar", "氩", "yà", "Argon", "39.95", 3, "0"),
    e(19, "K", "钾", "jiǎ", "Potassium", "39.098", 4, "IA"),
    e(20, "Ca", "钙", "gài", "Calcium", "40.078", 4, "IIA"),
    e(21, "Sc", "钪", "kàng", "Scandium", "44.956", 4, "IIIB"),
    e(22, "Ti", "钛", "tài", "Titanium", "47.867", 4, "IVB"),
    e(23, "V", "钒", "fán", "Vanadium", "50.942", 4, "VB"),
    e(24, "Cr", "铬", "gè", "Chromium", "51.996", 4, "VIB"),
    e(25, "Mn", "锰", "měng", "Manganese", "54.938", 4, "VIIB"),
    e(26, "Fe", "铁", "tiě", "Iron", "55.845", 4, "VIII"),
    e(27, "Co", "钴", "gǔ", "Cobalt", "58.933", 4, "VIII"),
    e(28, "Ni", "镍", "niè", "Nickel", "58.693", 4, "VIII"),
    e(29, "Cu", "铜", "tóng", "Copper", "63.546", 4, "IB"),
    e(30, "Zn", "锌", "xīn", "Zinc", "65.38", 4, "IIB"),
    e(31, "Ga", "镓", "jiā", "Gallium", "69.723", 4, "IIIA"),
    e(32, "Ge", "锗", "zhě", "Germanium", "72.630", 4, "IVA"),
    e(33, "As", "砷", "shēn", "Arsenic", "74.922", 4, "VA"),
    e(34, "Se", "硒", "xī", "Selenium", "78.971", 4, "VIA"),
    e(35, "Br", "溴", "xiù", "Bromine", "79.904", 4, "VIIA"),
    e(36, "Kr", "氪", "kè", "Krypton", "83.798", 4, "0"),
    e(37, "Rb", "铷", "rú", "Rubidium", "85.468", 5, "IA"),
    e(38, "Sr", "锶", "sī", "Strontium", "87.62", 5, "IIA"),
    e(39, "Y", "钇", "yǐ", "Yttrium", "88.906", 5, "IIIB"),
    e(40, "Zr", "锆", "gào", "Zirconium", "91.224", 5, "IVB"),
    e(41, "Nb", "铌", "ní", "Niobium", "92.906", 5, "VB"),
    e(42, "Mo", "钼", "mù", "Molybdenum", "95.95", 5, "VIB"),
    e(43, "Tc", "锝", "dé", "Technetium", "97", 5, "VIIB"),
    e(44, "Ru", "钌", "liǎo", "Ruthenium", "101.07", 5, "VIII"),
    e(45, "Rh", "铑", "lǎo", "Rhodium", "102.91", 5, "VIII"),
    e(46, "Pd", "钯", "bǎ", "Palladium", "106.42", 5, "VIII"),
    e(47, "Ag", "银", "yín", "Silver", "107.87", 5, "IB"),
    e(48, "Cd", "镉", "gé", "Cadmium", "112.41", 5, "IIB"),
    e(49, "In", "铟", "yīn", "Indium", "114.82", 5, "IIIA"),
    e(50, "Sn", "锡", "xī", "Tin", "118.71", 5, "IVA"),
    e(51, "Sb", "锑", "tī", "Antimony", "121.76", 5, "VA"),
    e(52, "Te", "碲", "dì", "Tellurium", "127.60", 5, "VIA"),
    e(53, "I", "碘", "diǎn", "Iodine", "126.90", 5, "VIIA"),
    e(54, "Xe", "氙", "xiān", "Xenon", "131.29", 5, "0"),
    e(55, "Cs", "铯", "sè", "Caesium", "132.91", 6, "IA"),
    e(56, "Ba", "钡", "bèi", "Barium", "137.33", 6, "IIA"),
    e(57, "La", "镧", "lán", "Lanthanum", "138.91", 6, "IIIB"),
    e(58, "Ce", "铈", "shì", "Cerium", "140.12", 6, "IIIB"),
    e(59, "Pr", "镨", "pǔ", "Praseodymium", "140.91", 6, "IIIB"),
    e(60, "Nd", "钕", "nǚ", "Neodymium", "144.24", 6, "IIIB"),
    e(61, "Pm", "钷", "pǒ", "Promethium", "145", 6, "IIIB"),
    e(62, "Sm", "钐", "shān", "Samarium", "150.36", 6, "IIIB"),
    e(63, "Eu", "铕", "yǒu", "Europium", "151.96", 6, "IIIB"),
    e(64, "Gd", "钆", "gá", "Gadolinium", "157.25", 6, "IIIB"),
    e(65, "Tb", "铽", "tè", "Terbium", "158.93", 6, "IIIB"),
    e(66, "Dy", "镝", "dī", "Dysprosium", "162.50", 6, "IIIB"),
    e(67, "Ho", "钬", "huǒ", "Holmium", "164.93", 6, "IIIB"),
    e(68, "Er", "铒", "ěr", "Erbium", "167.26", 6, "IIIB"),
    e(69, "Tm", "铥", "diū", "Thulium", "168.93", 6, "IIIB"),
    e(70, "Yb", "镱", "yì", "Ytterbium", "173.05", 6, "IIIB"),
    e(71, "Lu", "镥", "lǔ", "Lutetium", "174.97", 6, "IIIB"),
    e(72, "Hf", "铪", "hā", "Hafnium", "178.49", 6, "IVB"),
    e(73, "Ta", "钽", "tǎn", "Tantalum", "180.95", 6, "VB"),
    e(74, "W", "钨", "wū", "Tungsten", "183.84", 6, "VIB"),
    e(75, "Re", "铼", "lái", "Rhenium", "186.21", 6, "VIIB"),
    e(76, "Os", "锇", "é", "Osmium", "190.23", 6, "VIII"),
    e(77, "Ir", "铱", "yī", "Iridium", "192.22", 6, "VIII"),
    e(78, "Pt", "铂", "bó", "Platinum", "195.08", 6, "VIII"),
    e(79, "Au", "金", "jīn", "Gold", "196.97", 6, "IB"),
    e(80, "Hg", "汞", "gǒng", "Mercury", "200.59", 6, "IIB"),
    e(81, "Tl", "铊", "tā", "Thallium", "204.38", 6, "IIIA"),
    e(82, "Pb", "铅", "qiān", "Lead", "207.2", 6, "IVA"),
    e(83, "Bi", "铋", "bì", "Bismuth", "208.98", 6, "VA"),
    e(84, "Po", "钋", "pō", "Polonium", "209", 6, "VIA"),
    e(85, "At", "砹", "ài", "Astatine", "210", 6, "VIIA"),
    e(86, "Rn", "氡", "dōng", "Radon", "222", 6, "0"),
    e(87, "Fr", "钫", "fāng", "Francium", "223", 7, "IA"),
    e(88, "Ra", "镭", "léi", "Radium", "226", 7, "IIA"),
    e(89, "Ac", "锕", "ā", "Actinium", "227", 7, "IIIB"),
    e(90, "Th", "钍", "tǔ", "Thorium", "232.04", 7, "IIIB"),
    e(91, "Pa", "镤", "pú", "Protactinium", "231.04", 7, "IIIB"),
    e(92, "U", "铀", "yóu", "Uranium", "238.03", 7, "IIIB"),
    e(93, "Np", "镎", "ná", "Neptunium", "237", 7, "IIIB"),
    e(94, "Pu", "钚", "bù", "Plutonium", "244", 7, "IIIB"),
    e(95, "Am", "镅", "méi", "Americium", "243", 7, "IIIB"),
    e(96, "Cm", "锔", "jú", "Curium", "247", 7, "IIIB"),
    e(97, "Bk", "锫", "péi", "Berkelium", "247", 7, "IIIB"),
    e(98, "Cf", "锎", "kāi", "Californium", "251", 7, "IIIB"),
    e(99, "Es", "锿", "āi", "Einsteinium", "252", 7, "IIIB"),
    e(100, "Fm", "镄", "fèi", "Fermium", "257", 7, "IIIB"),
    e(101, "Md", "钔", "mén", "Mendelevium", "258", 7, "IIIB"),
    e(102, "No", "锘", "nuò", "Nobelium", "259", 7, "IIIB"),
    e(103, "Lr", "铹", "láo", "Lawrencium", "262", 7, "IIIB"),
    e(104, "Rf", "𬬻", "lú", "Rutherfordium", "267", 7, "IVB"),
    e(105, "Db", "𬭊", "dù", "Dubnium", "268", 7, "VB"),
    e(106, "Sg", "𬭳", "xǐ", "Seaborgium", "269", 7, "VIB"),
    e(107, "Bh", "𬭛", "bō", "Bohrium", "270", 7, "VIIB"),
    e(108, "Hs", "𬭶", "hēi", "Hassium", "269", 7, "VIII"),
    e(109, "Mt", "鿏", "mài", "Meitnerium", "277", 7, "VIII"),
    e(110, "Ds", "𫟼", "dá", "Darmstadtium", "281", 7, "VIII"),
    e(111, "Rg", "𬬭", "lún", "Roentgenium", "282", 7, "IB"),
    e(112, "Cn", "鿔", "gē", "Copernicium", "285", 7, "IIB"),
    e(113, "Nh", "鿭", "nǐ", "Nihonium", "286", 7, "IIIA"),
    e(114, "Fl", "𫓧", "fū", "Flerovium", "290", 7, "IVA"),
    e(115, "Mc", "镆", "mò", "Moscovium", "290", 7, "VA"),
    e(116, "Lv", "𫟷", "lì", "Livermorium", "293", 7, "VIA"),
    e(117, "Ts", "鿬", "tián", "Tennessine", "294", 7, "VIIA"),
    e(118, "Og", "鿫", "ào", "Oganesson", "294", 7, "0"),
];

/// English spellings in common use beside the IUPAC one, with the atomic number each means.
const OTHER_SPELLINGS: [(&str, u8); 3] = [("Aluminum", 13), ("Cesium", 55), ("Sulphur", 16)];

/// Every element under its Chinese name, symbol and English spellings, in their exact case.
static BY_NAME: LazyLock<HashMap<&'static str, &'static Element>> = LazyLock::new(|| {
    let mut index = HashMap::with_capacity(3 * ELEMENTS.len() + OTHER_SPELLINGS.len());
    for element in &ELEMENTS {
        index.insert(element.chinese, element);
        index.insert(element.english, element);
        index.insert(element.symbol, element);
    }
    for (spelling, number) in OTHER_SPELLINGS {
        index.extend(by_number(number.into()).map(|element| (spelling, element)));
    }
    index
});

/// Finds the element with the given atomic number.
pub fn by_number(n: i64) -> Option<&'static Element> {
    ELEMENTS.get(usize::try_from(n.checked_sub(1)?).ok()?)
}

/// Finds the element with the given Chinese name, English name or symbol.
///
/// White space around the name is ignored. An exact match is preferred; failing that, the case
/// of ASCII letters is ignored. Neither way allocates once the index is built.
pub fn by_name(name: &str) -> Option<&'static Element> {
    let name = name.trim();
    if let Some(element) = BY_NAME.get(name) {
        return Some(element);
    }
    if !name.is_ascii() {
        return None;
    }
    ELEMENTS
        .iter()
        .find(|element| element.symbol.eq_ignore_ascii_case(name) || element.english.eq_ignore_ascii_case(name))
        .or_else(|| {
            let (_, number) = OTHER_SPELLINGS.into_iter().find(|(spelling, _)| spelling.eq_ignore_ascii_case(name))?;
            by_number(number.into())
        })
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use super::*;

    /// Asserts that a lookup by name finds the element with the given atomic number.
    #[track_caller]
    fn assert_named(name: &str, number: u8) {
        assert_eq!(by_name(name).map(|e| e.number), Some(number), "{name:?}");
    }

    #[test]
    fn numbers_run_from_1_to_118_in_order() {
        assert_eq!(ELEMENTS.len(), 118);
        let numbers: Vec<u8> = ELEMENTS.iter().map(|e| e.number).collect();
        assert_eq!(numbers, (1..=118).collect::<Vec<u8>>());
    }

    #[test]
    fn every_identifying_column_is_distinct() {
        let columns: [fn(&Element) -> String; 4] =
            [|e| e.number.to_string(), |e| e.symbol.to_string(), |e| e.chinese.to_string(), |e| e.english.to_string()];
        for column in columns {
            let distinct: HashSet<String> = ELEMENTS.iter().map(column).collect();
            assert_eq!(distinct.len(), 118);
        }
    }

    #[test]
    fn no_two_names_differ_only_in_case() {
        let mut seen = HashSet::new();
        for e in &ELEMENTS {
            assert!(seen.insert(e.symbol.to_ascii_lowercase()), "{e:?}");
            assert!(seen.insert(e.english.to_ascii_lowercase()), "{e:?}");
        }
        for (spelling, _) in OTHER_SPELLINGS {
            assert!(seen.insert(spelling.to_ascii_lowercase()), "{spelling}");
        }
    }

    #[test]
    fn names_are_well_formed() {
        for e in &ELEMENTS {
            assert!((1..=2).contains(&e.symbol.len()), "{e:?}");
            assert!(e.symbol.starts_with(|c: char| c.is_ascii_uppercase()));
            assert!(e.symbol.chars().skip(1).all(|c| c.is_ascii_lowercase()));
            assert!(e.english.starts_with(|c: char| c.is_ascii_uppercase()));
            assert!(e.english.chars().skip(1).all(|c| c.is_ascii_lowercase()));
            assert_eq!(e.chinese.chars().count(), 1, "{e:?}");
            assert!(e.chinese.chars().all(|c| c >= '\u{4e00}'), "{e:?}");
        }
    }

    #[test]
    fn pinyin_is_lower_case_with_exactly_one_tone_mark() {
        const TONED: &str = "āáǎàēéěèīíǐìōóǒòūúǔùǖǘǚǜ";
        for e in &ELEMENTS {
            let toned = e.pinyin.chars().filter(|c| TONED.contains(*c)).count();
            assert_eq!(toned, 1, "{e:?}");
            let plain = e.pinyin.chars().filter(char::is_ascii_lowercase).count();
            assert_eq!(plain + toned, e.pinyin.chars().count(), "{e:?}");
        }
    }

    #[test]
    fn masses_increase_except_for_the_known_pairs() {
        let mut exceptions = Vec::new();
        for pair in ELEMENTS.windows(2) {
            let [lighter, heavier]: [f64; 2] =
                [&pair[0], &pair[1]].map(|e| e.mass.parse().expect("a mass is a number"));
            assert!(lighter > 0.0 && heavier.is_finite());
            if lighter >= heavier {
                let mark = if lighter > heavier { '>' } else { '=' };
                exceptions.push(format!("{} {mark} {}", pair[0].symbol, pair[1].symbol));
            }
        }
        let expected =
            ["Ar > K", "Co > Ni", "Te > I", "Th > Pa", "U > Np", "Pu > Am", "Cm = Bk", "Bh > Hs", "Fl = Mc", "Ts = Og"];
        assert_eq!(exceptions, expected);
    }

    #[test]
    fn mass_numbers_stand_for_the_elements_without_a_standard_atomic_weight() {
        let whole: Vec<u8> = ELEMENTS.iter().filter(|e| e.mass.parse::<u16>().is_ok()).map(|e| e.number).collect();
        let mut expected = vec![43, 61];
        expected.extend(84..=89);
        expected.extend(93..=118);
        assert_eq!(whole, expected);
        for e in &ELEMENTS {
            let mass: f64 = e.mass.parse().expect("a mass is a number");
            let ratio = mass / f64::from(e.number);
            assert!(e.number == 1 || (1.99..2.7).contains(&ratio), "{e:?}");
        }
    }

    #[test]
    fn periods_have_their_sizes_and_end_with_a_noble_gas() {
        let mut last = 0;
        for (period, size) in (1u8..).zip([2, 8, 8, 18, 18, 32, 32]) {
            let row: Vec<&Element> = ELEMENTS.iter().filter(|e| e.period == period).collect();
            assert_eq!(row.len(), size, "period {period}");
            assert_eq!(row[0].number, last + 1);
            assert_eq!(row[0].group, "IA");
            last = row[size - 1].number;
            for e in row {
                assert_eq!(e.group == "0", e.number == last, "{e:?}");
            }
        }
        assert_eq!(last, 118);
        let closing: Vec<u8> = ELEMENTS.iter().filter(|e| e.group == "0").map(|e| e.number).collect();
        assert_eq!(closing, [2, 10, 18, 36, 54, 86, 118]);
    }

    #[test]
    fn groups_have_their_members() {
        let mut members: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for e in &ELEMENTS {
            members.entry(e.group).or_default().push(e.symbol);
        }
        let counts: Vec<(&str, usize)> = members.iter().map(|(g, m)| (*g, m.len())).collect();
        let mut expected = vec![
            ("IA", 7),
            ("IIA", 6),
            ("IIIB", 32),
            ("IVB", 4),
            ("VB", 4),
            ("VIB", 4),
            ("VIIB", 4),
            ("VIII", 12),
            ("IB", 4),
            ("IIB", 4),
            ("IIIA", 6),
            ("IVA", 6),
            ("VA", 6),
            ("VIA", 6),
            ("VIIA", 6),
            ("0", 7),
        ];
        expected.sort_unstable();
        assert_eq!(counts, expected);

        let listed = [
            ("IA", "H Li Na K Rb Cs Fr"),
            ("IIA", "Be Mg Ca Sr Ba Ra"),
            ("IVB", "Ti Zr Hf Rf"),
            ("VB", "V Nb Ta Db"),
            ("VIB", "Cr Mo W Sg"),
            ("VIIB", "Mn Tc Re Bh"),
            ("VIII", "Fe Co Ni Ru Rh Pd Os Ir Pt Hs Mt Ds"),
            ("IB", "Cu Ag Au Rg"),
            ("IIB", "Zn Cd Hg Cn"),
            ("IIIA", "B Al Ga In Tl Nh"),
            ("IVA", "C Si Ge Sn Pb Fl"),
            ("VA", "N P As Sb Bi Mc"),
            ("VIA", "O S Se Te Po Lv"),
            ("VIIA", "F Cl Br I At Ts"),
            ("0", "He Ne Ar Kr Xe Rn Og"),
        ];
        for (group, symbols) in listed {
            assert_eq!(members[group].join(" "), symbols, "group {group}");
        }
        let third: Vec<u8> = ELEMENTS.iter().filter(|e| e.group == "IIIB").map(|e| e.number).collect();
        let rare_earths_and_actinides: Vec<u8> = [21, 39].into_iter().chain(57..=71).chain(89..=103).collect();
        assert_eq!(third, rare_earths_and_actinides);
    }

    #[test]
    fn sample_entries_agree_with_known_facts() {
        let facts = [
            (1, "H", "氢 qīng Hydrogen 1.008 1 IA"),
            (2, "He", "氦 hài Helium 4.0026 1 0"),
            (6, "C", "碳 tàn Carbon 12.011 2 IVA"),
            (7, "N", "氮 dàn Nitrogen 14.007 2 VA"),
            (8, "O", "氧 yǎng Oxygen 15.999 2 VIA"),
            (11, "Na", "钠 nà Sodium 22.990 3 IA"),
            (13, "Al", "铝 lǚ Aluminium 26.982 3 IIIA"),
            (14, "Si", "硅 guī Silicon 28.085 3 IVA"),
            (16, "S", "硫 liú Sulfur 32.06 3 VIA"),
            (17, "Cl", "氯 lǜ Chlorine 35.45 3 VIIA"),
            (18, "Ar", "氩 yà Argon 39.95 3 0"),
            (20, "Ca", "钙 gài Calcium 40.078 4 IIA"),
            (26, "Fe", "铁 tiě Iron 55.845 4 VIII"),
            (29, "Cu", "铜 tóng Copper 63.546 4 IB"),
            (30, "Zn", "锌 xīn Zinc 65.38 4 IIB"),
            (34, "Se", "硒 xī Selenium 78.971 4 VIA"),
            (42, "Mo", "钼 mù Molybdenum 95.95 5 VIB"),
            (43, "Tc", "锝 dé Technetium 97 5 VIIB"),
            (44, "Ru", "钌 liǎo Ruthenium 101.07 5 VIII"),
            (47, "Ag", "银 yín Silver 107.87 5 IB"),
            (50, "Sn", "锡 xī Tin 118.71 5 IVA"),
            (55, "Cs", "铯 sè Caesium 132.91 6 IA"),
            (60, "Nd", "钕 nǚ Neodymium 144.24 6 IIIB"),
            (66, "Dy", "镝 dī Dysprosium 162.50 6 IIIB"),
            (74, "W", "钨 wū Tungsten 183.84 6 VIB"),
            (79, "Au", "金 jīn Gold 196.97 6 IB"),
            (80, "Hg", "汞 gǒng Mercury 200.59 6 IIB"),
            (81, "Tl", "铊 tā Thallium 204.38 6 IIIA"),
            (82, "Pb", "铅 qiān Lead 207.2 6 IVA"),
            (84, "Po", "钋 pō Polonium 209 6 VIA"),
            (86, "Rn", "氡 dōng Radon 222 6 0"),
            (92, "U", "铀 yóu Uranium 238.03 7 IIIB"),
            (96, "Cm", "锔 jú Curium 247 7 IIIB"),
            (109, "Mt", "\u{9fcf} mài Meitnerium 277 7 VIII"),
            (110, "Ds", "\u{2b7fc} dá Darmstadtium 281 7 VIII"),
            (112, "Cn", "\u{9fd4} gē Copernicium 285 7 IIB"),
            (114, "Fl", "\u{2b4e7} fū Flerovium 290 7 IVA"),
            (118, "Og", "\u{9feb} ào Oganesson 294 7 0"),
        ];
        for (number, symbol, rest) in facts {
            let e = by_number(number).expect("the element exists");
            assert_eq!(e.symbol, symbol);
            let found = format!("{} {} {} {} {} {}", e.chinese, e.pinyin, e.english, e.mass, e.period, e.group);
            assert_eq!(found, rest);
        }
    }

    #[test]
    fn recent_names_use_the_standard_code_points() {
        let expected = [
            0x2cb3b, 0x2cb4a, 0x2cb73, 0x2cb5b, 0x2cb76, 0x9fcf, 0x2b7fc, 0x2cb2d, 0x9fd4, 0x9fed, 0x2b4e7, 0x9546,
            0x2b7f7, 0x9fec, 0x9feb,
        ];
        let found: Vec<u32> = ELEMENTS[103..].iter().flat_map(|e| e.chinese.chars()).map(u32::from).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn every_element_is_found_by_number() {
        for e in &ELEMENTS {
            let found = by_number(e.number.into()).expect("the number is known");
            assert!(std::ptr::eq(found, e));
        }
    }

    #[test]
    fn numbers_outside_the_table_find_nothing() {
        for n in [0, 119, -1, 257, i64::MIN, i64::MAX] {
            assert!(by_number(n).is_none(), "{n}");
        }
    }

    #[test]
    fn every_element_is_found_by_each_of_its_names() {
        for e in &ELEMENTS {
            for name in [e.chinese, e.english, e.symbol] {
                assert_named(name, e.number);
                assert_named(&name.to_ascii_lowercase(), e.number);
                assert_named(&name.to_ascii_uppercase(), e.number);
                assert_named(&format!(" \t{name}\u{3000}\n"), e.number);
            }
        }
    }

    #[test]
    fn both_english_spellings_are_accepted() {
        let spellings =
            [("Aluminium", 13), ("Aluminum", 13), ("Sulfur", 16), ("Sulphur", 16), ("Caesium", 55), ("Cesium", 55)];
        for (name, number) in spellings {
            assert_named(name, number);
            assert_named(&name.to_ascii_lowercase(), number);
            assert_named(&name.to_ascii_uppercase(), number);
        }
    }

    #[test]
    fn the_index_holds_every_exact_name() {
        assert_eq!(BY_NAME.len(), 3 * 118 + 3);
    }

    #[test]
    fn unknown_names_find_nothing() {
        for name in ["", "  ", "Xx", "J", "Unobtainium", "Hydrogen1", "Hyd rogen", "1", "水", "氢气", "氫", "qīng"]
        {
            assert!(by_name(name).is_none(), "{name:?}");
        }
    }
}
