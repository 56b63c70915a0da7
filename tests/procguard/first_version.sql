BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
CREATE TABLE events (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	at DATETIME NOT NULL, 
	who VARCHAR(64) NOT NULL, 
	action VARCHAR(32) NOT NULL, 
	object VARCHAR(140) NOT NULL, 
	detail TEXT NOT NULL
);
INSERT INTO "events" VALUES(1,'2026-11-22 12:35:32.105929','server','user-added','admin','operator');
INSERT INTO "events" VALUES(2,'2026-11-22 12:35:32.300122','server','user-added','vera','viewer');
INSERT INTO "events" VALUES(3,'2026-11-22 12:35:32.312753','server','joined','gn6','2 worker(s) on gn6.lan, any command');
INSERT INTO "events" VALUES(4,'2026-11-22 12:35:32.328272','server','joined','gn7','2 worker(s) on gn7.lan, any command');
INSERT INTO "events" VALUES(5,'2026-11-22 12:35:32.351973','admin','create','train','');
INSERT INTO "events" VALUES(6,'2026-11-22 12:35:32.373843','admin','create','spare','');
INSERT INTO "events" VALUES(7,'2026-11-22 12:35:32.387383','admin','move','train','gn6-0, gn6-1, gn7-0');
INSERT INTO "events" VALUES(8,'2026-11-22 12:35:32.390167','admin','start','train','run 1');
INSERT INTO "events" VALUES(9,'2026-11-22 12:35:32.400880','server','running','train','run 1');
CREATE TABLE groups (
	name VARCHAR(64) NOT NULL, 
	settings TEXT NOT NULL, 
	phase VARCHAR(16) NOT NULL, 
	phase_since DATETIME NOT NULL, 
	generation BIGINT NOT NULL, 
	run TEXT, 
	restarts_used INTEGER NOT NULL, 
	then_phase VARCHAR(16), 
	failure TEXT, 
	started_at DATETIME, 
	ended_at DATETIME, 
	CONSTRAINT pk_groups PRIMARY KEY (name)
);
INSERT INTO "groups" VALUES('train','{"master_addr":"gn6","master_port":29500,"world_size":null,"backend":"nccl","kind":"process","command":"python train.py --name ''a b''","max_restarts":2,"backoff_s":5.0,"silent_after_s":15.0,"fail_after_s":60.0,"ready_within_s":60.0,"grace_s":25.0}','running','2026-11-22 12:35:32.400808',1,'{"generation":1,"settings":{"master_addr":"gn6","master_port":29500,"world_size":null,"backend":"nccl","kind":"process","command":"python train.py --name ''a b''","max_restarts":2,"backoff_s":5.0,"silent_after_s":15.0,"fail_after_s":60.0,"ready_within_s":60.0,"grace_s":25.0},"kind":"process","master_addr":"gn6","master_port":29500,"world_size":3,"hosts":["gn6","gn7"],"places":[["gn6",0,0,2],["gn6",1,1,2],["gn7",0,0,1]],"idle":[],"commands":{"gn6":["python","train.py","--name","a b"],"gn7":["python","train.py","--name","a b"]}}',0,NULL,NULL,'2026-11-22 12:35:32.400808',NULL);
INSERT INTO "groups" VALUES('spare','{"master_addr":"","master_port":29500,"world_size":null,"backend":"nccl","kind":"process","command":"","max_restarts":0,"backoff_s":5.0,"silent_after_s":15.0,"fail_after_s":60.0,"ready_within_s":60.0,"grace_s":25.0}','idle','2026-11-22 12:35:32.365451',0,NULL,0,NULL,NULL,NULL,NULL);
CREATE TABLE nodes (
	name VARCHAR(64) NOT NULL, 
	instance VARCHAR(64) NOT NULL, 
	workers INTEGER NOT NULL, 
	about TEXT NOT NULL, 
	credential_sha256 VARCHAR(64) NOT NULL, 
	CONSTRAINT pk_nodes PRIMARY KEY (name), 
	CONSTRAINT uq_nodes_credential_sha256 UNIQUE (credential_sha256)
);
INSERT INTO "nodes" VALUES('gn6','instance-gn6',2,'{"hostname":"gn6.lan","addresses":[],"version":"","command":["train"],"allowed":null}','835cbccb9d353b785b966373d023620ba4a0b7019ac9c2bd3194543654cf8051');
INSERT INTO "nodes" VALUES('gn7','instance-gn7',2,'{"hostname":"gn7.lan","addresses":[],"version":"","command":["train"],"allowed":null}','0193c0f4e9e12a7c345e7d8afe7ce094df7e727b7a87b5a29c289c8c00b8370c');
CREATE TABLE server (
	id INTEGER NOT NULL, 
	token VARCHAR(64) NOT NULL, 
	host VARCHAR(255) NOT NULL, 
	pid INTEGER NOT NULL, 
	since DATETIME NOT NULL, 
	CONSTRAINT pk_server PRIMARY KEY (id)
);
INSERT INTO "server" VALUES(1,'6289ac72378729bf4ed1ac6b06c0df10','host',4711,'2026-11-22 12:35:31.913906');
CREATE TABLE users (
	name VARCHAR(64) NOT NULL, 
	role VARCHAR(16) NOT NULL, 
	password_hash TEXT NOT NULL, 
	epoch BIGINT NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_users PRIMARY KEY (name)
);
INSERT INTO "users" VALUES('admin','operator','$argon2id$v=19$m=24576,t=3,p=1$ATxoQF0vedWDxYpGlsFu1w$Ga6rFofrEFI2Dmo2JAzmR4I6iyC0AdTij/pwK5WFDRk',1795350932100,'2026-11-22 12:35:32.100320');
INSERT INTO "users" VALUES('vera','viewer','$argon2id$v=19$m=24576,t=3,p=1$PonC49cSBo1xKDiYi7Vehg$7HTLQK0BFXyYmDiMJUEavr+ZfXqVewYClDY//9wbdiQ',1795350932299,'2026-11-22 12:35:32.299370');
CREATE TABLE workers (
	node VARCHAR(64) NOT NULL, 
	number INTEGER NOT NULL, 
	group_name VARCHAR(64), 
	generation BIGINT NOT NULL, 
	CONSTRAINT pk_workers PRIMARY KEY (node, number), 
	CONSTRAINT fk_workers_node FOREIGN KEY(node) REFERENCES nodes (name) ON DELETE CASCADE, 
	CONSTRAINT fk_workers_group_name FOREIGN KEY(group_name) REFERENCES groups (name) ON DELETE SET NULL
);
INSERT INTO "workers" VALUES('gn6',0,'train',0);
INSERT INTO "workers" VALUES('gn6',1,'train',0);
INSERT INTO "workers" VALUES('gn7',0,'train',0);
INSERT INTO "workers" VALUES('gn7',1,NULL,0);
CREATE INDEX ix_workers_group_name ON workers (group_name);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('events',9);
COMMIT;
