"""Does recall do as well in other languages as plain BM25 over whole words, or over pairs of signs?

Small made-up logs, 96 sentences a language: who bought what where. A question names the person and the thing, and
its answer is every sentence that tells of both. Most languages bend the words between the two.

    bench/recall_languages.py [--data FILE …] [--no-embedder] [--json]
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import recall
from embedded import embedder
from quire.cli.output import print_table
from quire.recall import Collection, Document, relevant
from traces import parser

KS = (1, 5, 10)
# A sentence, a question, people, places, and things as the sentence and as the question names them.
LANGUAGES: dict[str, tuple[str, str, str, str, str]] = {
    "Chinese": ("{who}在{where}买了一{what}", "{who}的{asked}是在哪里买的?", "小明 小红 王强 李娜 张伟 陈静", "北京 上海 广州 成都 杭州 西安",
        "本旧书:旧书 辆自行车:自行车 件毛衣:毛衣 张桌子:桌子 把雨伞:雨伞 个背包:背包 盒茶叶:茶叶 双鞋子:鞋子"),
    "Japanese": ("{who}は{where}で{what}を買いました", "{who}が{asked}を買ったのはどこですか", "太郎 花子 健一 美咲 翔太 由美", "東京 大阪 京都 札幌 福岡 名古屋",
        "古い本:古い本 自転車:自転車 毛糸の帽子:帽子 木の机:机 赤い傘:傘 革の鞄:鞄 緑茶:緑茶 白い靴:靴"),
    "German": ("{who} hat in {where} {what} gekauft.", "Wo kaufte {who} {asked}?", "Anna Jürgen Käthe Björn Lena Götz", "Köln München Zürich Lübeck Gießen Bremen",
        "ein_altes_Buch:die_alten_Bücher zwei_Fahrräder:das_Fahrrad einen_Teppich:die_Teppiche eine_Lampe:die_Lampen drei_Stühle:den_Stuhl einen_Spiegel:die_Spiegel zwei_Töpfe:den_Topf eine_Uhr:die_Uhren"),
    "French": ("{who} a acheté {what} à {where}.", "Où {who} achetait-il {asked} ?", "Élise Benoît Zoé François Inès Théo", "Lyon Orléans Nîmes Angoulême Sète Évreux",
        "un_vieux_livre:les_vieux_livres deux_vélos:le_vélo une_lampe:les_lampes trois_chaises:la_chaise un_miroir:les_miroirs deux_théières:la_théière une_montre:les_montres un_tapis:les_tapis"),
    "Spanish": ("{who} compró {what} en {where}.", "¿Dónde compraba {who} {asked}?", "Inés Álvaro Lucía Martín Sofía Andrés", "Cádiz León Ávila Mérida Jaén Málaga",
        "un_libro_antiguo:los_libros_antiguos dos_bicicletas:la_bicicleta una_lámpara:las_lámparas tres_sillas:la_silla un_espejo:los_espejos dos_teteras:la_tetera un_reloj:los_relojes una_alfombra:las_alfombras"),
    "Italian": ("{who} ha comprato {what} a {where}.", "Dove comprava {who} {asked}?", "Niccolò Beatrice Matteo Chiara Nicolò Giulia", "Torino Forlì Pisa Lecce Trento Cefalù",
        "un_libro_antico:i_libri_antichi due_biciclette:la_bicicletta una_lampada:le_lampade tre_sedie:la_sedia uno_specchio:gli_specchi due_teiere:la_teiera un_orologio:gli_orologi un_tappeto:i_tappeti"),
    "Portuguese": ("{who} comprou {what} em {where}.", "Onde {who} comprava {asked}?", "Inês João Luísa Tomás Sofia André", "Évora Lisboa Braga Belém Santarém Faro",
        "um_livro_antigo:os_livros_antigos duas_bicicletas:a_bicicleta uma_lâmpada:as_lâmpadas três_cadeiras:a_cadeira um_espelho:os_espelhos duas_chaleiras:a_chaleira um_relógio:os_relógios um_tapete:os_tapetes"),
    "Dutch": ("{who} heeft {what} in {where} gekocht.", "Waar kocht {who} {asked}?", "Anneke Joost Femke Daan Lieke Bram", "Utrecht Leiden Zwolle Breda Delft Gouda",
        "een_oud_boek:de_oude_boeken twee_fietsen:de_fiets een_lamp:de_lampen drie_stoelen:de_stoel een_spiegel:de_spiegels twee_theepotten:de_theepot een_klok:de_klokken een_tapijt:de_tapijten"),
    "Swedish": ("{who} köpte {what} i {where}.", "Var köpte {who} {asked}?", "Åsa Björn Märta Göran Elsa Nils", "Malmö Örebro Gävle Luleå Lund Kalmar",
        "en_gammal_bok:de_gamla_böckerna två_cyklar:cykeln en_lampa:lamporna tre_stolar:stolen en_spegel:speglarna två_tekannor:tekannan en_klocka:klockorna en_matta:mattorna"),
    "Polish": ("{who} kupiła {what} w mieście {where}.", "Gdzie {who} kupowała {asked}?", "Małgorzata Zofia Łucja Hanna Bożena Ewa", "Łódź Kraków Gdańsk Opole Toruń Lublin",
        "starą_książkę:stare_książki rower:rowery lampę:lampy krzesło:krzesła lustro:lustra czajnik:czajniki zegarek:zegarki dywan:dywany"),
    "Turkish": ("{who} {where} şehrinde {what} aldı.", "{who} {asked} nerede almıştı?", "Ayşe Mehmet Gül Çağlar İpek Ömer", "Muğla Bursa Eskişehir Van Iğdır Sivas",
        "eski_bir_kitap:eski_kitapları bir_bisiklet:bisikletleri bir_lamba:lambaları bir_sandalye:sandalyeleri bir_ayna:aynaları bir_çaydanlık:çaydanlıkları bir_saat:saatleri bir_halı:halıları"),
    "Russian": ("{who} купила {what} в городе {where}.", "Где {who} покупала {asked}?", "Анна Ольга Мария Елена Ирина Татьяна", "Казань Тверь Псков Омск Рязань Тула",
        "старую_книгу:старые_книги велосипед:велосипеды лампу:лампы стулья:стул зеркало:зеркала чайник:чайники часы:часы ковёр:ковры"),
    "Greek": ("Η {who} αγόρασε {what} στην πόλη {where}.", "Πού αγόραζε η {who} {asked};", "Άννα Ελένη Μαρία Σοφία Ειρήνη Δανάη", "Πάτρα Βόλος Χανιά Κοζάνη Δράμα Λαμία",
        "ένα_βιβλίο:τα_βιβλία ένα_ποδήλατο:τα_ποδήλατα μια_λάμπα:τις_λάμπες μια_καρέκλα:τις_καρέκλες έναν_καθρέφτη:τους_καθρέφτες μια_τσαγιέρα:τις_τσαγιέρες ένα_ρολόι:τα_ρολόγια ένα_χαλί:τα_χαλιά"),
    "Korean": ("{who}은 {where}에서 {what} 샀어요", "{who}이 {asked} 산 곳은 어디예요?", "지민 서연 민준 하은 도윤 유진", "서울 부산 대구 인천 광주 대전",
        "헌_책을:헌_책은 자전거를:자전거는 털모자를:털모자 책상을:책상은 우산을:우산 가방을:가방은 녹차를:녹차 운동화를:운동화는"),
    "Arabic": ("اشترى {who} {what} من مدينة {where}.", "أين كان {who} يشتري {asked}؟", "أحمد خالد يوسف سامي كريم عمر", "دمشق بغداد طنجة عمان الرباط حلب",
        "كتابا_قديما:الكتاب_القديم دراجة:الدراجة مصباحا:المصباح كرسيا:الكرسي مرآة:المرآة إبريقا:الإبريق ساعة:الساعة سجادة:السجادة"),
    "Hindi": ("{who} ने {where} में {what} ली।", "{who} ने {asked} कहाँ से ख़रीदी थी?", "अनिता राहुल सुनीता विजय मीना अजय", "दिल्ली मुंबई जयपुर पटना भोपाल कोच्चि",
        "पुरानी_किताब:पुरानी_किताबें साइकिल:साइकिलें लालटेन:लालटेनें कुर्सी:कुर्सियाँ केतली:केतलियाँ घड़ी:घड़ियाँ चादर:चादरें छतरी:छतरियाँ"),
    "Thai": ("{who}ซื้อ{what}ที่{where}", "{asked}ของ{who}ซื้อมาจากที่ไหน", "สมชาย มาลี ประเสริฐ วิภา อนันต์ สุดา", "เชียงใหม่ ขอนแก่น ภูเก็ต ระยอง ลำปาง ตรัง",
        "หนังสือเก่า:หนังสือเก่า จักรยาน:จักรยาน โคมไฟ:โคมไฟ เก้าอี้ไม้:เก้าอี้ กระจก:กระจก กาน้ำชา:กาน้ำชา นาฬิกา:นาฬิกา พรมแดง:พรม"),
}  # fmt: skip

# Documents, and each question with the places of the sentences that answer it.
Task = tuple[list[Document], list[tuple[str, set[int]]]]


def task(language: str) -> Task:
    sentence, question, people, places, things = LANGUAGES[language]
    dice, told = random.Random(7), []
    pairs = [thing.replace("_", " ").split(":") for thing in things.split()]
    for who in people.split():
        for what, asked in pairs:
            told += [(who, what, asked, where) for where in dice.sample(places.split(), 2)]
    dice.shuffle(told)
    some = [
        Document(str(at), sentence.format(who=who, what=what, where=where), speaker="user", session="s")
        for at, (who, what, _, where) in enumerate(told)
    ]
    right: dict[str, set[int]] = {}
    for at, (who, _, asked, _) in enumerate(told):
        right.setdefault(question.format(who=who, asked=asked), set()).add(at)
    return some, list(right.items())


def plain(text: str) -> list[str]:
    """Whole words, and pairs of signs where words are not parted."""
    words = re.findall(r"[^\s.,;:?!।؟]+", text.lower())
    cut = [(word, "\u0e00" <= word[0] <= "\u0eff" or word[0] > "\u3000") for word in words]
    return [part for word, in_pairs in cut for part in ((a + b for a, b in pairwise(word)) if in_pairs else (word,))]


def placed(some: Task, model: Any) -> float:
    """The share of questions for which a turn would be given an answer: among the first five, and above the floor."""
    held = Collection(model)
    held.upsert(some[0])
    held.embed()
    found = [(held.search(text, 5), right) for text, right in some[1]]
    return (
        100
        * sum(relevant(hits) and any(held.row(hit.id) in right for hit in hits) for hits, right in found)
        / len(found)
    )


def measure(some: Task, rank: Callable[[str], Sequence[int]]) -> list[float]:
    orders = [(list(rank(text)), right) for text, right in some[1]]
    return [
        100 * sum(len(right.intersection(order[:k])) / min(k, len(right)) for order, right in orders) / len(orders)
        for k in KS
    ]


def ways(some: list[Document], model: Any) -> dict[str, Callable[[str], Sequence[int]]]:
    def quire(with_: Any) -> Callable[[str], Sequence[int]]:
        held = Collection(with_)
        held.upsert(some)
        held.embed()
        return lambda query: [held.row(found.id) for found in held.search(query, max(KS))]

    def bm25(query: str) -> Sequence[int]:
        with patch.object(recall, "terms", plain):
            return recall._Bm25([one.text for one in some]).rank(query)

    made = {"BM25": bm25, "Quire by words": quire(None)}
    return {**made, "Quire": quire(model)} if model is not None else made


def main() -> None:
    options = parser(__doc__, "nothing: the sentences are made here; files")
    options.add_argument("--no-embedder", action="store_true", help="search by words alone")
    args = options.parse_args()
    if args.data:
        raise SystemExit("the sentences are made here; leave --data out")
    model = embedder(not args.no_embedder)
    tasks = {language: task(language) for language in LANGUAGES}
    found = {
        language: {way: measure(some, rank) for way, rank in ways(some[0], model).items()}
        for language, some in tasks.items()
    }
    given = {language: placed(some, model) for language, some in tasks.items()}
    if args.json:
        print(json.dumps({"found": found, "placed": given}))
        return
    rows = [
        [name, *(" / ".join(f"{x:.1f}" for x in row) for row in by.values()), f"{given[name]:.1f}"]
        for name, by in found.items()
    ]
    print_table(["R@1 / 5 / 10", *next(iter(found.values())), "placed"], rows)


if __name__ == "__main__":
    main()
